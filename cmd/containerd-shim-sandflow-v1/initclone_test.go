// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// The init joins the cgroups of controllers that are mounted, not those of which there is only
// a directory, which may be one that nothing can be made in.
func TestMountedHierarchies(t *testing.T) {
	if os.Geteuid() != 0 || cgroups.Mode() == cgroups.Unified {
		t.Skip("needs root, and a node with cgroup v1")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its mounts
		before := names(t)
		if !slices.Contains(before, "pids") || !slices.Contains(before, "memory") {
			t.Errorf("found only %v", before)
			return
		}
		if err := hide("/sys/fs/cgroup/pids"); err != nil {
			t.Error(err)
			return
		}
		if after := names(t); slices.Contains(after, "pids") || !slices.Contains(after, "memory") {
			t.Errorf("without pids found %v", after)
		}
	}()
	<-done
}

// hide has the calling thread see an empty directory.
func hide(path string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY, "")
}

func names(t *testing.T) []string {
	all, err := mounted()
	if err != nil {
		t.Error(err)
	}
	var out []string
	for _, s := range all {
		out = append(out, string(s.Name()))
	}
	return out
}
