// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// deleted is what the kernel puts behind the path of a directory that is gone.
const deleted = " (deleted)"

// killStrays kills what runs for a pod though nothing is recorded of it: because a crash of
// the daemon came before the record, or somebody has removed the pod's directory by hand. It
// finds shims by the directory that they work in and the pod's ID that they were started
// with, and the init of the pod, with all it started, by the pinned PID namespace.
func (m *Manager) killStrays(podID, dir string) error {
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	pinned, ok := identityOf(pidNamespace(dir))
	if own, _ := identityOf("/proc/self/ns/pid"); own == pinned {
		ok = false // a pin that was never mounted
	}
	_, err := bundle.KillAll(func(pid int) bool {
		proc := strconv.Itoa(pid)
		if ns, there := identityOf(filepath.Join("/proc", proc, "ns", "pid")); ok && there && ns == pinned {
			return true
		}
		return m.isShim(proc, podID, dir)
	})
	return err
}

// isShim tells whether a process works in a shim's directory, where nobody else has to, or was
// started as the shim of a pod whose directory is gone.
func (m *Manager) isShim(pid, podID, dir string) bool {
	cwd, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	if err != nil {
		return false
	}
	if cwd == dir {
		return true
	}
	raw, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	if err != nil || !strings.HasSuffix(cwd, deleted) {
		return false
	}
	args := strings.Split(string(raw), "\x00")
	i := slices.Index(args, "-id")
	return filepath.Base(args[0]) == filepath.Base(m.cfg.Shim) && i > 0 && i+1 < len(args) && args[i+1] == podID
}

// identity is what tells one namespace from another.
type identity struct{ dev, ino uint64 }

func identityOf(path string) (identity, bool) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return identity{}, false
	}
	return identity{st.Dev, st.Ino}, true
}
