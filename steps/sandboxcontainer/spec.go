// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sandboxcontainer

import (
	"path/filepath"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
)

// Annotations by which runtimes with sandbox containers know pods.
const (
	annotationType      = "io.kubernetes.cri.container-type"
	annotationID        = "io.kubernetes.cri.sandbox-id"
	annotationName      = "io.kubernetes.cri.sandbox-name"
	annotationNamespace = "io.kubernetes.cri.sandbox-namespace"
	annotationUID       = "io.kubernetes.cri.sandbox-uid"
	annotationLogs      = "io.kubernetes.cri.sandbox-log-directory"
)

const nobody = 65534

// sandboxShares is the CPU weight of a process that only waits.
var sandboxShares = uint64(2)

// spec is the OCI spec of the sandbox container: the image's program without
// any privilege, in the pod's namespaces.
func (a *Action) spec(id string, req steps.Pod, ns steps.Namespaces, img snapshot.Image) *specs.Spec {
	rt, _ := a.cfg.RuntimeFor(req.Handler)
	version := rt.OCIVersion
	if version == "" {
		version = specs.Version
	}
	user := imageUser(img.Spec.Config.User)
	cwd := img.Spec.Config.WorkingDir
	if cwd == "" {
		cwd = "/"
	}
	return &specs.Spec{
		Version: version,
		Root:    &specs.Root{Path: rootfsName, Readonly: true},
		Process: &specs.Process{
			Args: append(append([]string{}, img.Spec.Config.Entrypoint...), img.Spec.Config.Cmd...),
			Env:  img.Spec.Config.Env, Cwd: cwd, User: user, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=64k"}},
		},
		Annotations: annotations(id, req),
		Linux: &specs.Linux{
			CgroupsPath: a.cgroup(id, req),
			Resources:   &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &sandboxShares}},
			Namespaces:  namespaces(ns),
			MaskedPaths: []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"}, ReadonlyPaths: []string{"/proc/sys", "/proc/sysrq-trigger"},
		},
	}
}

func annotations(id string, req steps.Pod) map[string]string {
	c := req.Config.M
	out := map[string]string{
		annotationType: "sandbox", annotationID: id,
		annotationName: c.GetMetadata().GetName(), annotationNamespace: c.GetMetadata().GetNamespace(),
		annotationUID: c.GetMetadata().GetUid(), annotationLogs: c.GetLogDirectory(),
	}
	return out
}

// imageUser reads a numeric user; a sandbox container's image has no other.
func imageUser(user string) specs.User {
	uid, gid, _ := strings.Cut(user, ":")
	u := specs.User{UID: nobody, GID: nobody}
	if n, err := strconv.ParseUint(uid, 10, 32); err == nil {
		u.UID, u.GID = uint32(n), uint32(n)
	}
	if n, err := strconv.ParseUint(gid, 10, 32); err == nil {
		u.GID = uint32(n)
	}
	return u
}

// namespaces are the pod's pinned ones; what is not pinned is the node's, but for mounts and processes.
func namespaces(ns steps.Namespaces) []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
	for _, n := range []specs.LinuxNamespace{
		{Type: specs.NetworkNamespace, Path: ns.Net}, {Type: specs.IPCNamespace, Path: ns.IPC},
		{Type: specs.UTSNamespace, Path: ns.UTS}, {Type: specs.UserNamespace, Path: ns.User},
	} {
		if n.Path != "" {
			out = append(out, n)
		}
	}
	return out
}

func (a *Action) cgroup(id string, req steps.Pod) string {
	parent := req.Config.M.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = a.cfg.DefaultCgroupParent
	}
	if a.cfg.CgroupDriver == "systemd" {
		return filepath.Base(parent) + ":sandflow:" + id
	}
	return filepath.Join("/", parent, id)
}
