// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// clone starts this program as PID 1 of new PID, mount and cgroup namespaces,
// which belong to the user namespace user if it is not empty.
func clone(user string, status, goOn *os.File) (int, error) {
	if user != "" {
		return cloneInUserNamespace(user, status, goOn)
	}
	return startInNewNamespaces(status, goOn)
}

func startInNewNamespaces(status, goOn *os.File) (int, error) {
	p, err := os.StartProcess("/proc/self/exe", []string{initName, initMode}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Files: []*os.File{nil, nil, nil, status, goOn},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP,
		},
	})
	if err != nil {
		return 0, fmt.Errorf("fork init: %w", err)
	}
	pid := p.Pid
	return pid, p.Release() // reaped with all other children
}

// recordInit leaves in the shim's directory which process the init is.
func recordInit(pid int) error {
	return bundle.WriteProcess(bundle.InitFile, pid) // the shim runs in its directory
}

// joinCgroup moves the init into a cgroup of its own.
func joinCgroup(path string, pid int) error {
	if path == "" {
		return nil
	}
	if isScope(path) {
		return joinScope(context.Background(), path, pid)
	}
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.NewManager("/sys/fs/cgroup", path, &cgroup2.Resources{})
		if err != nil {
			return fmt.Errorf("make cgroup %s of init: %w", path, err)
		}
		return m.AddProc(uint64(pid)) //nolint:gosec // a PID
	}
	c, err := cgroup1.New(cgroup1.StaticPath(path), &specs.LinuxResources{}, cgroup1.WithHierarchy(mounted))
	if err != nil {
		return fmt.Errorf("make cgroup %s of init: %w", path, err)
	}
	return c.AddProc(uint64(pid)) //nolint:gosec // a PID
}

// mounted are the cgroup v1 hierarchies of the node. A directory is not one yet: systemd leaves
// those of controllers that it could not mount.
func mounted() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	return slices.DeleteFunc(all, func(s cgroup1.Subsystem) bool {
		at, ok := s.(interface{ Path(cgroup string) string })
		var fs unix.Statfs_t
		return !ok || unix.Statfs(at.Path("/"), &fs) != nil || fs.Type != unix.CGROUP_SUPER_MAGIC
	}), err
}
