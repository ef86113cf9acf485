// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	loadprofile "github.com/containerd/containerd/v2/contrib/apparmor"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	capability "github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/containerd/v2/pkg/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// host is what this node can do. The spec follows it, not switches that someone
// has to set right.
type host struct {
	hostName  string
	caps      []string // of this process, sorted: nobody gets more
	cgroups   cgroups.Host
	swap      func() bool
	pageSizes []uint64 // of huge pages, in bytes
	oomFloor  int      // the least oom_score_adj that may be set
	seccomp   bool
	apparmor  bool
	selinux   bool
	relabel   func(path, label string, shared bool) error
	// labels gives the labels of a process and of its mounts.
	labels func(options []string) (process, mount string, err error)
	// appArmorProfiles is the kernel's list; loadAppArmor loads the default profile under a name.
	appArmorProfiles string
	loadAppArmor     func(name string) error
	devices          func() ([]specs.LinuxDevice, error)
	exists           func(path string) bool
	profiles         *profiles
}

// detect looks at the node, once.
var detect = sync.OnceValue(func() *host {
	h := &host{
		cgroups:   cgroups.Detect(),
		pageSizes: hugePageSizes("/sys/kernel/mm/hugepages"),
		seccomp:   seccomp.IsEnabled(),
		apparmor:  apparmor.HostSupports(),
		selinux:   selinux.GetEnabled(),
		relabel:   label.Relabel,
		labels:    label.InitLabels,
		devices:   hostDevices,
		exists:    exists,
		profiles:  &profiles{now: time.Now},

		appArmorProfiles: appArmorProfiles,
		loadAppArmor:     loadprofile.LoadDefaultProfile,
	}
	// Without its own name HOSTNAME stays unset; without its capabilities none are given.
	h.hostName, _ = os.Hostname()
	h.caps, _ = capability.Current()
	slices.Sort(h.caps)
	h.oomFloor = oomFloor(h.caps)
	// Not once for all: on v2 it shows only when the first cgroup is there.
	h.swap = h.cgroups.SwapAccounting
	return h
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// oomFloor: without CAP_SYS_RESOURCE a process cannot lower the value below its
// own (proc_pid_oom_score_adj(5)).
func oomFloor(caps []string) int {
	const least = -1000
	if slices.Contains(caps, "CAP_SYS_RESOURCE") {
		return least
	}
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return own
}

// hugePageSizes reads the names of the kernel's directories: hugepages-2048kB.
func hugePageSizes(dir string) []uint64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var sizes []uint64
	for _, e := range entries {
		digits := strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB")
		if n, err := strconv.ParseUint(digits, 10, 32); err == nil {
			sizes = append(sizes, n<<10)
		}
	}
	return sizes
}
