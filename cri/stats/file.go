// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// unlimited is the value of a limit that is none.
const unlimited = math.MaxUint64

// readText reads a file of a cgroup. A cgroup that is gone, also in the middle, is
// errdefs.ErrNotFound. The kernel is asked without package os, which would try to have each
// file polled: lists read thousands of them.
func readText(dir, name string) (string, error) {
	path := dir + "/" + name
	fd, err := again(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", gone(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	defer func() { _ = unix.Close(fd) }() // it was only read
	text := make([]byte, 0, firstRead)
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, text[len(text):cap(text)]) })
		if err != nil {
			return "", gone(&fs.PathError{Op: "read", Path: path, Err: err})
		}
		if n == 0 {
			return string(text), nil
		}
		if text = text[:len(text)+n]; len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
	}
}

// firstRead holds what most files have; memory.stat is the largest.
const firstRead = 2 << 10

// again repeats what a signal has interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return err
}

// readNumber reads a file with one number; "max" is unlimited, and so is what is
// above half the range of a page counter: v1 has no word for it.
func readNumber(dir, name string) (uint64, error) {
	text, err := readText(dir, name)
	if err != nil {
		return 0, err
	}
	n, err := parseNumber(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return n, nil
}

func parseNumber(s string) (uint64, error) {
	if s == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, err
	}
	if n >= math.MaxInt64/4096*4096 {
		return unlimited, nil
	}
	return n, nil
}

// readPairs reads a file with lines "key value". Lines of other forms are skipped.
func readPairs(dir, name string) (map[string]uint64, error) {
	text, err := readText(dir, name)
	if err != nil {
		return nil, err
	}
	return parsePairs(text), nil
}

func parsePairs(text string) map[string]uint64 {
	pairs := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			pairs[key] = n
		}
	}
	return pairs
}

// processes counts the processes in a cgroup and those below it. Cgroups below that
// vanish meanwhile count as empty.
func processes(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, gone(&fs.PathError{Op: "stat", Path: dir, Err: err})
	}
	var n uint64
	if text, err := readText(dir, "cgroup.procs"); err == nil { // a threaded cgroup refuses
		n = uint64(strings.Count(text, "\n"))
	}
	const none = 2 // links of a directory without others in it
	if st.Nlink == none {
		return n, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, gone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		below, err := processes(filepath.Join(dir, e.Name()))
		if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return 0, err
		}
		n += below
	}
	return n, nil
}
