// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

// Sysctl is a kernel setting of one of the pod's namespaces.
type Sysctl struct {
	Name, Value string
	// IPC is set for a setting of the IPC namespace; the others are of the network or UTS namespace.
	IPC bool
}

// Path is the setting's file.
func (s Sysctl) Path() string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(s.Name, ".", "/"))
}

const (
	unprivilegedPorts = "net.ipv4.ip_unprivileged_port_start"
	pingGroups        = "net.ipv4.ping_group_range"
	// allGroups is every group id that the kernel takes as the end of a range.
	allGroups = "0\t2147483647"
)

var sysctlName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$`)

// Sysctls are the settings to write into the pod's own namespaces, in order of
// name: those of the request, and the configured defaults that it does not override.
func Sysctls(cfg *runtime.PodSandboxConfig, c steps.Config) ([]Sysctl, error) {
	want := map[string]string{}
	if !HostNetwork(cfg) {
		if c.EnableUnprivilegedPorts {
			want[unprivilegedPorts] = "0"
		}
		if c.EnableUnprivilegedICMP {
			want[pingGroups] = allGroups
		}
	}
	for name, value := range cfg.GetLinux().GetSysctls() {
		if err := validateSysctl(cfg, name, value); err != nil {
			return nil, err
		}
		if name == pingGroups {
			var err error
			if value, err = groupRange(cfg, value); err != nil {
				return nil, err
			}
		}
		want[name] = value
	}
	list := make([]Sysctl, 0, len(want))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		list = append(list, Sysctl{Name: name, Value: want[name], IPC: ownerOf(name) == ipcNamespace})
	}
	return list, nil
}

// groupRange turns a range of the pod's group ids into the node's, since that
// is how the kernel reads it when written from outside of the user namespace.
func groupRange(cfg *runtime.PodSandboxConfig, value string) (string, error) {
	u, ok := UserNamespace(cfg)
	fields := strings.Fields(value)
	if !ok || len(fields) != 2 {
		return value, nil // the kernel judges
	}
	ids := make([]uint64, 2)
	for i, f := range fields {
		id, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return "", invalid("sysctl %s=%q: not a range of group ids", pingGroups, value)
		}
		ids[i] = id
	}
	if ids[0] > ids[1] {
		return "1\t0", nil // the kernel's way to say nobody
	}
	if ids[1] >= uint64(u.GID.GetLength()) {
		return "", invalid("sysctl %s=%q: group id %d is not mapped, the pod has %d ids", pingGroups, value, ids[1], u.GID.GetLength())
	}
	base := uint64(u.GID.GetHostId())
	return fmt.Sprintf("%d\t%d", base+ids[0], base+ids[1]), nil
}

type owner int

const (
	nodeWide owner = iota
	netNamespace
	ipcNamespace
	utsNamespace
)

// ownerOf says which namespace a setting belongs to.
func ownerOf(name string) owner {
	switch {
	case strings.HasPrefix(name, "net."):
		return netNamespace
	case name == "kernel.sem", strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), strings.HasPrefix(name, "fs.mqueue."):
		return ipcNamespace
	case name == "kernel.domainname":
		return utsNamespace
	}
	return nodeWide
}

func validateSysctls(cfg *runtime.PodSandboxConfig) error {
	for name, value := range cfg.GetLinux().GetSysctls() {
		if err := validateSysctl(cfg, name, value); err != nil {
			return err
		}
	}
	return nil
}

func validateSysctl(cfg *runtime.PodSandboxConfig, name, value string) error {
	if !sysctlName.MatchString(name) {
		return invalid("sysctl %q is not a dotted name of letters, digits, '_' and '-'", name)
	}
	if !clean(strings.ReplaceAll(value, "\t", " ")) {
		return invalid("sysctl %s: value %q contains a control character", name, value)
	}
	switch ownerOf(name) {
	case netNamespace, utsNamespace:
		if HostNetwork(cfg) {
			return invalid("sysctl %s cannot be set: the pod uses the node's network", name)
		}
	case ipcNamespace:
		if HostIPC(cfg) {
			return invalid("sysctl %s cannot be set: the pod uses the node's IPC namespace", name)
		}
	case nodeWide:
		return invalid("sysctl %s cannot be set: it belongs to the whole node", name)
	}
	return nil
}
