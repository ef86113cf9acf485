// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/images"
)

// asking is a call, and how it must be answered.
type asking struct {
	name string
	do   func(context.Context) error
	want codes.Code
}

// answer makes a call of any type whose answer does not matter.
func answer[Q, A, O any](f func(context.Context, Q, ...O) (A, error), q Q) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := f(ctx, q)
		return err
	}
}

// all makes calls, and checks their answers.
func (l *life) all(calls []asking) error {
	for _, c := range calls {
		for tries := 0; ; tries++ {
			rough, err := l.call(l.ctx, c.name, c.do)
			if isCode(err, c.want) {
				break
			}
			if !rough || tries == maxTries {
				return fmt.Errorf("%s is answered by %s, not %s: %w", c.name, code(err), c.want, orNil(err))
			}
		}
	}
	return nil
}

// ask asks for all that a client can ask for.
func (l *life) ask() error {
	c := l.n.client
	calls := []asking{
		{"Version", answer(c.Version, &cri.VersionRequest{}), codes.OK},
		{"Status", answer(c.Status, &cri.StatusRequest{Verbose: true}), codes.OK},
		{"RuntimeConfig", answer(c.RuntimeConfig, &cri.RuntimeConfigRequest{}), codes.OK},
		{"ListPodSandbox", answer(c.ListPodSandbox, &cri.ListPodSandboxRequest{}), codes.OK},
		{"ListContainers", answer(c.ListContainers, &cri.ListContainersRequest{}), codes.OK},
		{"ListContainerStats", answer(c.ListContainerStats, &cri.ListContainerStatsRequest{}), codes.OK},
		{"ListPodSandboxStats", answer(c.ListPodSandboxStats, &cri.ListPodSandboxStatsRequest{}), codes.OK},
		{"ListMetricDescriptors", answer(c.ListMetricDescriptors, &cri.ListMetricDescriptorsRequest{}), codes.OK},
		{"ListPodSandboxMetrics", answer(c.ListPodSandboxMetrics, &cri.ListPodSandboxMetricsRequest{}), codes.OK},
		{"ListImages", answer(c.ListImages, &cri.ListImagesRequest{}), codes.OK},
		{"ImageStatus", answer(c.ImageStatus, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: images.Busybox}}), codes.OK},
		{"ImageFsInfo", answer(c.ImageFsInfo, &cri.ImageFsInfoRequest{}), codes.OK},
	}
	if p := l.pod; p != nil {
		calls = append(calls, asking{"PodSandboxStatus", answer(c.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true}), codes.OK})
		if !p.stopped && !p.lost {
			calls = append(calls,
				asking{"PodSandboxStats", answer(c.PodSandboxStats, &cri.PodSandboxStatsRequest{PodSandboxId: p.id}), codes.OK},
				asking{"PortForward", answer(c.PortForward, &cri.PortForwardRequest{PodSandboxId: p.id, Port: []int32{80}}), codes.OK})
		}
	}
	for _, x := range l.slots {
		if x == nil || x.id == "" {
			continue
		}
		calls = append(calls, asking{"ContainerStatus", answer(c.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: x.id, Verbose: true}), codes.OK})
		if x.runs() {
			calls = append(calls,
				asking{"ContainerStats", answer(c.ContainerStats, &cri.ContainerStatsRequest{ContainerId: x.id}), codes.OK},
				asking{"Attach", answer(c.Attach, &cri.AttachRequest{ContainerId: x.id, Stdout: true}), codes.OK},
				asking{"Exec", answer(c.Exec, &cri.ExecRequest{ContainerId: x.id, Cmd: []string{"true"}, Stdout: true}), codes.OK})
		}
	}
	return l.all(calls)
}

// runs says whether a container certainly runs.
func (c *container) runs() bool { return c.started && c.waits() && !c.ended && !c.pod.lost }

// update changes a container that runs, and reopens its log.
func (l *life) update(slot int) error {
	x := l.container(slot)
	if x.id == "" || !x.runs() {
		l.tell("nothing to do")
		return nil
	}
	const shares = 77
	err := l.all([]asking{
		{"UpdateContainerResources", answer(l.n.client.UpdateContainerResources, &cri.UpdateContainerResourcesRequest{
			ContainerId: x.id, Linux: &cri.LinuxContainerResources{CpuShares: shares},
		}), codes.OK},
		{"ReopenContainerLog", answer(l.n.client.ReopenContainerLog, &cri.ReopenContainerLogRequest{ContainerId: x.id}), codes.OK},
	})
	if err != nil {
		return err
	}
	s, err := l.status(x)
	if err == nil && s.GetResources().GetLinux().GetCpuShares() != shares {
		err = fmt.Errorf("it was given %d CPU shares, and has %v", shares, s.GetResources())
	}
	return err
}

// unknown makes all calls with IDs that nothing has.
func (l *life) unknown(context.Context) error {
	return l.all(l.strange(strings.Repeat("0", 56)+fmt.Sprintf("%08x", l.story.Index), strings.Repeat("f", 64)))
}

// strange are all calls with the IDs of a pod and a container that do not exist.
func (l *life) strange(pod, container string) []asking {
	c := l.n.client
	return []asking{
		{"PodSandboxStatus", answer(c.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: pod}), codes.NotFound},
		{"StopPodSandbox", answer(c.StopPodSandbox, &cri.StopPodSandboxRequest{PodSandboxId: pod}), codes.OK},
		{"RemovePodSandbox", answer(c.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: pod}), codes.OK},
		{"CreateContainer", answer(c.CreateContainer, &cri.CreateContainerRequest{
			PodSandboxId: pod, SandboxConfig: l.podConfig(0), Config: l.containerConfig("x", 0, story.Container{}),
		}), codes.NotFound},
		{"PodSandboxStats", answer(c.PodSandboxStats, &cri.PodSandboxStatsRequest{PodSandboxId: pod}), codes.NotFound},
		{"PortForward", answer(c.PortForward, &cri.PortForwardRequest{PodSandboxId: pod, Port: []int32{1}}), codes.NotFound},
		{"ContainerStatus", answer(c.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: container}), codes.NotFound},
		{"StopContainer", answer(c.StopContainer, &cri.StopContainerRequest{ContainerId: container, Timeout: 1}), codes.OK},
		{"RemoveContainer", answer(c.RemoveContainer, &cri.RemoveContainerRequest{ContainerId: container}), codes.OK},
		{"StartContainer", answer(c.StartContainer, &cri.StartContainerRequest{ContainerId: container}), codes.NotFound},
		{"ExecSync", answer(c.ExecSync, &cri.ExecSyncRequest{ContainerId: container, Cmd: []string{"true"}}), codes.NotFound},
		{"Exec", answer(c.Exec, &cri.ExecRequest{ContainerId: container, Cmd: []string{"true"}, Stdout: true}), codes.NotFound},
		{"Attach", answer(c.Attach, &cri.AttachRequest{ContainerId: container, Stdout: true}), codes.NotFound},
		{"ContainerStats", answer(c.ContainerStats, &cri.ContainerStatsRequest{ContainerId: container}), codes.NotFound},
		{"ReopenContainerLog", answer(c.ReopenContainerLog, &cri.ReopenContainerLogRequest{ContainerId: container}), codes.NotFound},
		{"UpdateContainerResources", answer(c.UpdateContainerResources, &cri.UpdateContainerResourcesRequest{
			ContainerId: container, Linux: &cri.LinuxContainerResources{CpuShares: 2},
		}), codes.NotFound},
	}
}

// wrong makes calls that cannot succeed.
func (l *life) wrong() error {
	c := l.n.client
	nameless := l.podConfig(0)
	nameless.Metadata = nil
	calls := []asking{
		{"RunPodSandbox", answer(c.RunPodSandbox, &cri.RunPodSandboxRequest{}), codes.InvalidArgument},
		{"RunPodSandbox", answer(c.RunPodSandbox, &cri.RunPodSandboxRequest{Config: nameless}), codes.InvalidArgument},
		{"RunPodSandbox", answer(c.RunPodSandbox, &cri.RunPodSandboxRequest{Config: l.podConfig(99), RuntimeHandler: "none"}), codes.InvalidArgument},
		{"StopPodSandbox", answer(c.StopPodSandbox, &cri.StopPodSandboxRequest{}), codes.InvalidArgument},
		{"RemoveContainer", answer(c.RemoveContainer, &cri.RemoveContainerRequest{}), codes.InvalidArgument},
		{"ContainerStatus", answer(c.ContainerStatus, &cri.ContainerStatusRequest{}), codes.InvalidArgument},
	}
	if p := l.pod; p != nil {
		calls = append(calls,
			asking{"ContainerStatus", answer(c.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: p.id}), codes.NotFound},
			asking{"StopContainer", answer(c.StopContainer, &cri.StopContainerRequest{ContainerId: p.id}), codes.OK},
			asking{"RemoveContainer", answer(c.RemoveContainer, &cri.RemoveContainerRequest{ContainerId: p.id}), codes.OK})
		want, odd := codes.InvalidArgument, codes.NotFound // no configuration; an image that is not there
		if p.stopped {
			want, odd = codes.FailedPrecondition, codes.FailedPrecondition
		}
		if !p.lost {
			config := l.containerConfig("odd", 0, story.Container{})
			config.Image = &cri.ImageSpec{Image: "registry.example/none:1"}
			calls = append(calls,
				asking{"CreateContainer", answer(c.CreateContainer, &cri.CreateContainerRequest{PodSandboxId: p.id}), want},
				asking{"CreateContainer", answer(c.CreateContainer, &cri.CreateContainerRequest{PodSandboxId: p.id, Config: config}), odd})
		}
	}
	for _, x := range l.slots {
		if x == nil || x.id == "" {
			continue
		}
		calls = append(calls,
			asking{"PodSandboxStatus", answer(c.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: x.id}), codes.NotFound},
			asking{"RemovePodSandbox", answer(c.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: x.id}), codes.OK})
		switch {
		case x.started:
			calls = append(calls, asking{"StartContainer", answer(c.StartContainer, &cri.StartContainerRequest{ContainerId: x.id}), codes.FailedPrecondition})
		case !x.tried:
			calls = append(calls, asking{"ExecSync", answer(c.ExecSync, &cri.ExecSyncRequest{ContainerId: x.id, Cmd: []string{"true"}}), codes.FailedPrecondition})
		}
		if x.runs() {
			calls = append(calls, asking{"ExecSync", answer(c.ExecSync, &cri.ExecSyncRequest{ContainerId: x.id}), codes.InvalidArgument})
		}
	}
	return l.all(calls)
}

// vanished makes calls with the IDs of what has been removed.
func (l *life) vanished() error {
	for i, id := range l.gone.pods {
		container := id // also unknown as a container
		if i < len(l.gone.containers) {
			container = l.gone.containers[i]
		}
		if err := l.all(l.strange(id, container)); err != nil {
			return err
		}
	}
	return nil
}
