// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// setNamespaces joins the pod's namespaces; one without a path is the node's.
// mnt, and pid and cgroup where private, are made by the OCI runtime.
func (b *build) setNamespaces() error {
	l := b.spec.Linux
	join := func(t specs.LinuxNamespaceType, path string) {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
	join(specs.MountNamespace, "")
	for _, n := range []struct {
		t    specs.LinuxNamespaceType
		path string
	}{
		{specs.NetworkNamespace, b.Pod.Namespaces.Net}, {specs.IPCNamespace, b.Pod.Namespaces.IPC}, {specs.UTSNamespace, b.Pod.Namespaces.UTS},
	} {
		if n.path != "" {
			join(n.t, n.path)
		}
	}
	path, private, err := b.pidNamespace()
	if err != nil {
		return err
	}
	if path != "" || private {
		join(specs.PIDNamespace, path)
	}
	if b.host.cgroups.Unified && !b.sec.GetPrivileged() {
		join(specs.CgroupNamespace, "")
	}
	if b.Pod.Namespaces.User != "" {
		join(specs.UserNamespace, b.Pod.Namespaces.User)
		l.UIDMappings, l.GIDMappings = idMappings(b.userns().GetUids()), idMappings(b.userns().GetGids())
	}
	return nil
}

// pidNamespace gives the path to join, or private for an own one, or neither for the node's.
func (b *build) pidNamespace() (path string, private bool, err error) {
	podMode := b.podConfig.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid()
	switch b.sec.GetNamespaceOptions().GetPid() {
	case runtime.NamespaceMode_CONTAINER:
		return "", true, nil
	case runtime.NamespaceMode_NODE:
		return "", false, nil
	case runtime.NamespaceMode_TARGET:
		if b.Ctr.TargetPID <= 0 {
			return "", false, fmt.Errorf("container %s, whose PID namespace is to be joined, does not run: %w", b.sec.GetNamespaceOptions().GetTargetId(), errdefs.ErrFailedPrecondition)
		}
		return fmt.Sprintf("/proc/%d/ns/pid", b.Ctr.TargetPID), false, nil
	case runtime.NamespaceMode_POD:
	}
	switch podMode {
	case runtime.NamespaceMode_NODE:
		return "", false, nil
	case runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_TARGET:
		return "", true, nil
	case runtime.NamespaceMode_POD:
	}
	if b.Pod.Shim.PIDNamespace == "" && b.foreign() {
		return "", true, nil // inside of its sandbox such a runtime does as it will
	}
	if b.Pod.Shim.PIDNamespace == "" {
		return "", false, fmt.Errorf("the pod's shared PID namespace is not there: %w", errdefs.ErrFailedPrecondition)
	}
	return b.Pod.Shim.PIDNamespace, false, nil
}

// foreign tells of a runtime with a shim that is not ours.
func (b *build) foreign() bool { return b.runtime.Type != "" && b.runtime.Type != ownRuntime }

// ownRuntime is the type of runtime handlers that use our own shim.
const ownRuntime = "sandflow"

func idMappings(in []*runtime.IDMapping) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, 0, len(in))
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func validateNamespaces(c, pod *runtime.NamespaceOption) error {
	// Whatever a container says, it joins its pod's. POD is also what is not said.
	for field, mode := range map[string][2]runtime.NamespaceMode{"network": {c.GetNetwork(), pod.GetNetwork()}, "ipc": {c.GetIpc(), pod.GetIpc()}} {
		if mode[0] != runtime.NamespaceMode_POD && mode[0] != mode[1] {
			return invalid("security_context.namespace_options."+field, "it is %s, the sandbox's is %s", mode[0], mode[1])
		}
	}
	switch c.GetPid() {
	case runtime.NamespaceMode_POD, runtime.NamespaceMode_CONTAINER:
	case runtime.NamespaceMode_NODE:
		if pod.GetPid() != runtime.NamespaceMode_NODE {
			return invalid("security_context.namespace_options.pid", "NODE needs a sandbox with NODE")
		}
	case runtime.NamespaceMode_TARGET:
		if c.GetTargetId() == "" {
			return invalid("security_context.namespace_options.target_id", "TARGET needs the id of a container")
		}
	default:
		return invalid("security_context.namespace_options.pid", "%d is unknown", c.GetPid())
	}
	if o := c.GetUsernsOptions(); o != nil && !sameUsers(o, pod.GetUsernsOptions()) {
		return invalid("security_context.namespace_options.userns_options", "they differ from the sandbox's")
	}
	return nil
}

// sameUsers compares what the options amount to: without mappings there is no user namespace.
func sameUsers(a, b *runtime.UserNamespace) bool {
	return slices.EqualFunc(mappingsOf(a), mappingsOf(b), func(x, y *runtime.IDMapping) bool { return proto.Equal(x, y) })
}

func mappingsOf(o *runtime.UserNamespace) []*runtime.IDMapping {
	if o.GetMode() != runtime.NamespaceMode_POD {
		return nil
	}
	return slices.Concat(o.GetUids(), o.GetGids())
}
