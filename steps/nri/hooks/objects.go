// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"maps"
	"slices"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// Objects shows the engine's records to plugins. It is the reading half of
// nri.Runtime.
type Objects struct {
	Engine interface {
		Get(workflow, id string) (*engine.View, bool)
		List(workflow string) []*engine.View
	}
	Config steps.Config
}

// Existing lists the records that can be read. After recovery nothing is on its
// way up.
func (o Objects) Existing() nri.Existing {
	var e nri.Existing
	for _, v := range o.Engine.List(steps.Sandbox) {
		if !v.Damaged {
			whole := v.Station == steps.Ready && v.Phase == engine.Standing
			e.Pods = append(e.Pods, nri.ExistingPod{ID: v.ID, Stopped: !whole})
		}
	}
	for _, v := range o.Engine.List(steps.Container) {
		request, ok, err := steps.ContainerRequest.Get(v)
		if v.Damaged || err != nil || !ok {
			continue
		}
		_, ran, _ := steps.ContainerTask.Get(v)
		e.Containers = append(e.Containers, nri.ExistingContainer{
			ID: v.ID, Pod: request.PodID, Started: ran, Stopped: ran && v.Station != steps.Running,
		})
	}
	return e
}

// Pod shows a pod, or nil if there is no such record.
func (o Objects) Pod(id string) *api.PodSandbox {
	v, ok := o.Engine.Get(steps.Sandbox, id)
	if !ok {
		return nil
	}
	request, ok, err := steps.PodRequest.Get(v)
	if err != nil || !ok {
		return nil
	}
	c := request.Config.M
	// What cannot be read in a damaged record is left out.
	shim, _, _ := steps.PodShim.Get(v)
	network, _, _ := steps.PodNetwork.Get(v)
	namespaces, _, _ := steps.PodNamespaces.Get(v)
	updated, _, _ := steps.PodResources.Get(v)
	overhead, sum := c.GetLinux().GetOverhead(), c.GetLinux().GetResources()
	if updated.M != nil {
		sum = updated.M
	}
	if o, ok, err := steps.PodOverhead.Get(v); err == nil && ok {
		overhead = o.M
	}
	parent := c.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = o.Config.DefaultCgroupParent
	}
	return &api.PodSandbox{
		Id: id, Name: c.GetMetadata().GetName(), Uid: c.GetMetadata().GetUid(), Namespace: c.GetMetadata().GetNamespace(),
		Labels: maps.Clone(c.GetLabels()), Annotations: maps.Clone(c.GetAnnotations()), RuntimeHandler: request.Handler,
		Pid: uint32(max(0, shim.PID)), Ips: slices.Clone(network.IPs), //nolint:gosec // a PID
		Linux: &api.LinuxPodSandbox{
			CgroupParent: parent, PodOverhead: Resources(overhead), PodResources: Resources(sum),
			Namespaces: podNamespaces(namespaces), Resources: &api.LinuxResources{},
		},
	}
}

func podNamespaces(n steps.Namespaces) []*api.LinuxNamespace {
	var out []*api.LinuxNamespace
	add := func(kind specs.LinuxNamespaceType, path string) {
		if path != "" {
			out = append(out, &api.LinuxNamespace{Type: string(kind), Path: path})
		}
	}
	add(specs.NetworkNamespace, n.Net)
	add(specs.IPCNamespace, n.IPC)
	add(specs.UTSNamespace, n.UTS)
	add(specs.UserNamespace, n.User)
	return out
}

// Resources are limits of the CRI as plugins see them; nil for none. Values of 0
// are not specified.
func Resources(r *runtime.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	limits, err := spec.Resources(r)
	if err != nil {
		return nil // it is refused where it is to be applied
	}
	return api.FromOCILinuxResources(limits, nil)
}

// Container shows a container, or nil if there is no such record. What its
// bundle says is left out when there is none.
func (o Objects) Container(id string) *api.Container {
	v, ok := o.Engine.Get(steps.Container, id)
	if !ok {
		return nil
	}
	request, ok, err := steps.ContainerRequest.Get(v)
	if err != nil || !ok {
		return nil
	}
	c := request.Config.M
	out := &api.Container{
		Id: id, PodSandboxId: request.PodID, Name: c.GetMetadata().GetName(),
		Labels: maps.Clone(c.GetLabels()), Annotations: maps.Clone(c.GetAnnotations()),
		CreatedAt: request.Created.UnixNano(), State: api.ContainerState_CONTAINER_CREATED,
		Image: &api.Image{Name: imageName(c), Digest: request.Image.Ref, ConfigDigest: request.Image.ID},
		Linux: &api.LinuxContainer{},
	}
	for _, d := range c.GetCDIDevices() {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	o.progress(v, out)
	if s, err := spec.ReadBundle(o.Config.ContainerDir(id)); err == nil {
		describe(s, out)
	}
	return out
}

func imageName(c *runtime.ContainerConfig) string {
	if name := c.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return c.GetImage().GetImage()
}

// progress fills in how far the container has got.
func (o Objects) progress(v *engine.View, out *api.Container) {
	if task, ok, err := steps.ContainerTask.Get(v); err == nil && ok {
		out.StartedAt = task.Started.UnixNano()
		if v.Station == steps.Running {
			out.State, out.Pid = api.ContainerState_CONTAINER_RUNNING, uint32(max(0, task.PID)) //nolint:gosec // a PID
		}
	}
	if exit, ok, err := steps.ContainerExit.Get(v); err == nil && ok {
		out.State, out.Pid = api.ContainerState_CONTAINER_STOPPED, 0
		out.ExitCode, out.StatusReason, out.StatusMessage = exit.Code, exit.Reason, exit.Message
		out.FinishedAt = exit.Finished.UnixNano()
	}
}

// describe fills in what the OCI spec says.
func describe(s *specs.Spec, out *api.Container) {
	if len(s.Annotations) > 0 {
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		maps.Copy(out.Annotations, s.Annotations)
	}
	out.Mounts, out.Hooks = api.FromOCIMounts(s.Mounts), api.FromOCIHooks(s.Hooks)
	if p := s.Process; p != nil {
		out.Args, out.Env = slices.Clone(p.Args), slices.Clone(p.Env)
		out.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: p.User.AdditionalGids}
		for _, l := range p.Rlimits {
			out.Rlimits = append(out.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
		}
		out.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
		out.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
		out.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
	}
	if l := s.Linux; l != nil {
		out.Linux.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
		out.Linux.Devices = api.FromOCILinuxDevices(l.Devices)
		out.Linux.Resources = api.FromOCILinuxResources(l.Resources, nil)
		out.Linux.CgroupsPath, out.Linux.Sysctl = l.CgroupsPath, maps.Clone(l.Sysctl)
		if l.Seccomp != nil {
			out.Linux.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
		}
		out.Linux.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
	}
}
