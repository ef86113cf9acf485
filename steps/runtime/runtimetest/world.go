// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
)

// World lists what shims and containers below state could leave behind: files,
// mounts, cgroups and processes.
func World(t testing.TB, state string) []string {
	t.Helper()
	var w []string
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(state, path)
		if d.Name() == "rootfs" || rel == "logs" {
			return fs.SkipDir
		}
		w = append(w, "file "+rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(state))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		w = append(w, "mount "+m.Mountpoint)
	}
	return append(append(w, cgroups(t)...), processes(state)...)
}

// cgroups lists the cgroups of containers of tests.
func cgroups(t testing.TB) []string {
	t.Helper()
	var out []string
	parents, _ := filepath.Glob("/sys/fs/cgroup/*" + CgroupParent)
	for _, dir := range append(parents, "/sys/fs/cgroup"+CgroupParent) {
		children, _ := os.ReadDir(dir)
		for _, c := range children {
			if c.IsDir() {
				out = append(out, "cgroup "+filepath.Join(dir, c.Name()))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// processes lists the living ones that work in state or name it on their command line.
func processes(state string) []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmdline, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(d, "cwd"))
		if len(cmdline) > 0 && (strings.HasPrefix(cwd, state) || strings.Contains(string(cmdline), state)) {
			out = append(out, "process "+filepath.Base(d)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return out
}
