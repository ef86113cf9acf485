// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

const procDir = "/proc"

// members are the processes in a cgroup and below it.
func members(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != dir {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if err != nil {
			return nil //nolint:nilerr // a threaded cgroup refuses; one that is gone has none
		}
		for line := range strings.Lines(string(text)) {
			// A process of another PID namespace is 0.
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return pids, err
}

// Descriptors counts the open files of processes, and which of them are sockets.
// Processes that end meanwhile have none.
func Descriptors(pids []int) (files, sockets uint64) {
	for _, pid := range pids {
		dir := filepath.Join(procDir, strconv.Itoa(pid), "fd")
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		files += uint64(len(entries))
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err == nil && strings.HasPrefix(target, "socket:") {
				sockets++
			}
		}
	}
	return files, sockets
}

// OpenFilesLimit is the soft limit on open files of a process; ok is false if it has
// ended or has none.
func OpenFilesLimit(pid int) (limit uint64, ok bool) {
	text, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(pid), "limits"))
	if err != nil {
		return 0, false
	}
	return parseLimits(string(text))
}

func parseLimits(text string) (limit uint64, ok bool) {
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, "Max open files")
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, false
		}
		n, err := strconv.ParseUint(fields[0], 10, 64)
		return n, err == nil
	}
	return 0, false
}
