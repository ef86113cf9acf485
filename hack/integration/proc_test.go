// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// pidsWith are the processes that have a word on their command line, but for ourselves.
func (n *node) pidsWith(word string) []int {
	n.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(n.t, err)
	var out []int
	for _, path := range found {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must(n.t, err)
		raw, err := os.ReadFile(path)
		if err == nil && pid != os.Getpid() && strings.Contains(string(raw), word) {
			out = append(out, pid)
		}
	}
	return out
}

// children are the processes below one.
func (n *node) children(pid int) []int {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "task", strconv.Itoa(pid), "children"))
	if err != nil {
		return nil
	}
	var out []int
	for _, f := range strings.Fields(string(raw)) {
		child, err := strconv.Atoi(f)
		must(n.t, err)
		out = append(out, child)
	}
	return out
}

// killAllOf kills a pod's shim and its containers.
func (n *node) killAllOf(pod string) {
	n.t.Helper()
	for _, shim := range n.pidsWith(pod) {
		containers := n.children(shim)
		for _, pid := range append([]int{shim}, containers...) {
			must(n.t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	waitFor(n.t, "the shim's end", func() bool { return len(n.pidsWith(pod)) == 0 })
}

// unmountAllOf unmounts all that is mounted for the IDs.
func (n *node) unmountAllOf(ids ...string) {
	n.t.Helper()
	all, err := mountinfo.GetMounts(nil)
	must(n.t, err)
	slices.Reverse(all)
	for _, m := range all {
		for _, id := range ids {
			if strings.Contains(m.Mountpoint, id) {
				must(n.t, unix.Unmount(m.Mountpoint, unix.MNT_DETACH))
			}
		}
	}
}

// files counts a process's open files.
func (n *node) files(pid int) int {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	must(n.t, err)
	return len(entries)
}

// kinds counts a process's open files by what they are.
func (n *node) kinds(pid int) map[string]int {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd", "*"))
	must(n.t, err)
	out := map[string]int{}
	for _, path := range found {
		if target, err := os.Readlink(path); err == nil {
			kind, _, _ := strings.Cut(target, ":")
			out[kind]++
		}
	}
	return out
}

// touchIn makes a file in the root of the container whose process has the words on its
// command line, without the daemon's help.
func (n *node) touchIn(words, path string) {
	n.t.Helper()
	for _, pid := range n.pidsWith(words) {
		root := filepath.Join("/proc", strconv.Itoa(pid), "root")
		if target, err := os.Readlink(root); err == nil && target == "/" {
			if _, err := os.Stat(filepath.Join(root, "bin/busybox")); err == nil {
				must(n.t, os.WriteFile(filepath.Join(root, path), nil, 0o644))
				return
			}
		}
	}
	n.t.Fatalf("no container with %q on its command line", words)
}

// removeCgroupsOf removes the cgroups with the IDs.
func (n *node) removeCgroupsOf(ids ...string) {
	n.t.Helper()
	for _, id := range ids {
		found, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", n.lab.CgroupParent, id))
		must(n.t, err)
		for _, path := range found {
			// The kernel takes a moment to let go of the processes just killed.
			waitFor(n.t, "the removal of "+path, func() bool { return os.Remove(path) == nil })
		}
	}
}
