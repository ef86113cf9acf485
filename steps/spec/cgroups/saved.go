// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// limitsV1 are the files of limits of each v1 controller, as patterns of filepath.Glob.
var limitsV1 = map[string][]string{
	"cpu":     {"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpu.idle", "cpu.rt_period_us", "cpu.rt_runtime_us"},
	"cpuset":  {"cpuset.cpus", "cpuset.mems"},
	"memory":  {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.soft_limit_in_bytes"},
	"pids":    {"pids.max"},
	"blkio":   {"blkio.weight", "blkio.bfq.weight"},
	"hugetlb": {"hugetlb.*.limit_in_bytes"},
}

// limitsV2 are those of v2.
var limitsV2 = []string{
	"cpu.weight", "cpu.max", "cpu.max.burst", "cpu.idle", "cpuset.cpus", "cpuset.mems",
	"memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "pids.max", "io.weight", "hugetlb.*.max",
}

// Saved are the limits of a cgroup as they were: the content by file.
type Saved map[string]string

// Save reads the limits of the cgroup that cgroupsPath stands for, and on v2 also the
// files that unified names. A cgroup that is not there has none.
func (h Host) Save(cgroupsPath string, unified ...string) (Saved, error) {
	var patterns []string
	at := func(root string, files []string) {
		for _, f := range files {
			patterns = append(patterns, filepath.Join(root, Dir(cgroupsPath), f))
		}
	}
	if h.Unified {
		at(h.Root, limitsV2)
		at(h.Root, unified)
	} else {
		for controller, root := range h.Mounts {
			at(root, limitsV1[controller])
		}
	}
	saved := Saved{}
	for _, p := range patterns {
		files, err := filepath.Glob(p)
		if err != nil {
			return nil, fmt.Errorf("find limits of cgroup %s: %w", cgroupsPath, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if gone(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read a limit: %w", err)
			}
			saved[file] = string(text)
		}
	}
	return saved, nil
}

// Restore writes back what has changed since. The kernel wants some limits in a certain
// order (memory before memory with swap when they fall, after it when they rise), so those
// that it refuses are tried again as long as others succeed. A cgroup that is gone needs none.
func (s Saved) Restore() error {
	left := slices.Sorted(maps.Keys(s))
	for {
		var again []string
		var errs []error
		for _, file := range left {
			if err := s.restore(file); err != nil {
				again, errs = append(again, file), append(errs, err)
			}
		}
		if len(again) == len(left) || len(again) == 0 {
			return errors.Join(errs...)
		}
		left = again
	}
}

func (s Saved) restore(file string) error {
	text, err := os.ReadFile(file)
	if gone(err) || err == nil && string(text) == s[file] {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a limit: %w", err)
	}
	// What was empty is one empty line, which empties it again.
	for line := range strings.SplitSeq(strings.TrimSuffix(s[file], "\n"), "\n") {
		if err := write(file, line+"\n"); err != nil && !gone(err) {
			return fmt.Errorf("put a limit back to %q: %w", line, err)
		}
	}
	return nil
}

// write makes one write of it, as the kernel wants it, and never makes a file.
func write(file, text string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// gone tells that a cgroup went away.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// SetHugePages limits the huge pages of one size, named as in an OCI spec ("2MB"), to a
// number of bytes. OCI runtimes do so when they create a container, and not when they
// update one. Without the controller it is an error.
func (h Host) SetHugePages(cgroupsPath, size string, limit uint64) error {
	root, file := h.Mounts["hugetlb"], "limit_in_bytes"
	if h.Unified {
		root, file = h.Root, "max"
	}
	dir, value := filepath.Join(root, Dir(cgroupsPath)), fmt.Sprintf("%d\n", limit)
	if err := write(filepath.Join(dir, "hugetlb."+size+"."+file), value); err != nil {
		return fmt.Errorf("limit huge pages of %s: %w", size, err)
	}
	// Reserved pages, where the kernel counts them.
	if err := write(filepath.Join(dir, "hugetlb."+size+".rsvd."+file), value); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("limit reserved huge pages of %s: %w", size, err)
	}
	return nil
}
