// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// unlimited is the value of a limit that is none.
const unlimited = math.MaxUint64

// readText reads a file of a cgroup. A cgroup that is gone, also in the middle, is
// errdefs.ErrNotFound.
func readText(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return string(b), err
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

// processes counts the processes in a cgroup and those below it. Cgroups that
// vanish meanwhile count as empty.
func processes(dir string) (uint64, error) {
	var n uint64
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != dir {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		n += countLines(filepath.Join(p, "cgroup.procs"))
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return n, err
}

// countLines: a file that cannot be read has none (a threaded cgroup refuses).
func countLines(path string) uint64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	var n uint64
	s := bufio.NewScanner(f)
	for s.Scan() {
		n++
	}
	return n
}
