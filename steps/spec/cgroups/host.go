// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Root is where cgroups are mounted on every current system.
const Root = "/sys/fs/cgroup"

// hybridRoot is where systemd's hybrid mode has cgroup v2.
const hybridRoot = Root + "/unified"

// Host is how a node has its cgroups mounted.
type Host struct {
	// Unified tells that Root is a cgroup v2 mount.
	Unified bool
	// Root is the mount point of a cgroup v2 hierarchy. Besides v1, which has one for
	// each controller, it is set if there is one without controllers (hybrid).
	Root string
	// Mounts are the mount points by controller. For v2 they are all Root.
	Mounts map[string]string
}

// Detect looks at this node, once.
var Detect = sync.OnceValue(func() Host {
	var fs unix.Statfs_t
	if err := unix.Statfs(Root, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return Unified(Root)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup"))
	if err != nil {
		return Host{Mounts: map[string]string{}}
	}
	h := legacy(mounts)
	if err := unix.Statfs(hybridRoot, &fs); err == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
		h.Root = hybridRoot
	}
	return h
})

// Unified is the host whose cgroup v2 hierarchy is mounted at root.
func Unified(root string) Host {
	h := Host{Unified: true, Root: root, Mounts: map[string]string{}}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return h
	}
	for _, c := range strings.Fields(string(b)) {
		h.Mounts[c] = root
	}
	return h
}

// legacy finds where each v1 controller is mounted; the first mount counts, as for the OCI runtimes.
func legacy(mounts []*mountinfo.Info) Host {
	known := []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "freezer", "blkio", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc"}
	h := Host{Mounts: map[string]string{}}
	for _, m := range mounts {
		for o := range strings.SplitSeq(m.VFSOptions, ",") {
			if _, ok := h.Mounts[o]; !ok && slices.Contains(known, o) {
				h.Mounts[o] = m.Mountpoint
			}
		}
	}
	return h
}

// Has tells whether the node has a controller.
func (h Host) Has(controller string) bool {
	_, ok := h.Mounts[controller]
	return ok
}

// SwapAccounting tells whether swap can be limited. On v2 the root has no swap
// file, so that a child of it is looked at.
func (h Host) SwapAccounting() bool {
	root, ok := h.Mounts["memory"]
	if !ok {
		return false
	}
	if !h.Unified {
		_, err := os.Stat(filepath.Join(root, "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	found, err := filepath.Glob(filepath.Join(root, "*", "memory.swap.max"))
	return err == nil && len(found) > 0
}
