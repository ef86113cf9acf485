// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/images"
)

// life is what a client knows of a pod with one container.
type life struct {
	n       *node
	handler string
	config  *cri.PodSandboxConfig
	ctr     *cri.ContainerConfig
	pod, id string // of the sandbox and the container, once known
	timeout time.Duration
}

// stage is one call of a client in such a life.
type stage struct {
	name string
	call func(*life, context.Context) error
	// again is what the client does when it does not know how the call has ended, as kubelet
	// does: it looks first, and uses what it finds.
	again func(*life, context.Context) error
}

var stages = []stage{
	{"RunPodSandbox", (*life).runPod, (*life).runPodAgain},
	{"CreateContainer", (*life).create, (*life).createAgain},
	{"StartContainer", (*life).start, (*life).startAgain},
	{"StopContainer", (*life).stop, (*life).stop},
	{"RemoveContainer", (*life).remove, (*life).remove},
	{"StopPodSandbox", (*life).stopPod, (*life).stopPod},
	{"RemovePodSandbox", (*life).removePod, (*life).removePod},
}

func (n *node) life(handler string) *life {
	n.lives++
	name := fmt.Sprintf("life-%d", n.lives)
	ns := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
	return &life{
		n: n, handler: handler, timeout: rpcTimeout,
		config: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
			Hostname: name, LogDirectory: filepath.Join(n.lab.Dir, "logs", n.daemon.Name, name),
			PortMappings: []*cri.PortMapping{{ContainerPort: 80, HostPort: 18080}},
			Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: ns}},
		},
		ctr: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "c"},
			Image:    &cri.ImageSpec{Image: images.Busybox, UserSpecifiedImage: images.Busybox},
			Command:  []string{"sleep", "10000"}, LogPath: "c.log",
			Mounts: []*cri.Mount{{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: images.Pause}}},
			Linux:  &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: ns}},
		},
	}
}

func (l *life) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.n.t.Context(), l.timeout)
}

// from lives from a stage to the end.
func (l *life) from(stage int) error { return l.span(stage, len(stages)) }

// span lives from one stage up to, and without, another.
func (l *life) span(from, to int) error {
	for _, s := range stages[from:to] {
		if err := l.do(s); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) do(s stage) error {
	ctx, cancel := l.context()
	defer cancel()
	if err := s.call(l, ctx); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// repeat does a call again whose end is not known.
func (l *life) repeat(s stage) error {
	ctx, cancel := l.context()
	defer cancel()
	if err := s.again(l, ctx); err != nil {
		return fmt.Errorf("%s again: %w", s.name, err)
	}
	return nil
}

func (l *life) runPod(ctx context.Context) error {
	r, err := l.n.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: l.config, RuntimeHandler: l.handler})
	if err == nil {
		l.pod = r.GetPodSandboxId()
	}
	return err
}

func (l *life) runPodAgain(ctx context.Context) error {
	p, err := l.findPod(ctx)
	switch {
	case err != nil:
		return err
	case p == nil:
		return l.runPod(ctx)
	case p.GetState() == cri.PodSandboxState_SANDBOX_READY:
		l.pod = p.GetId()
		return nil
	}
	l.pod = p.GetId()
	if err := errors.Join(l.stopPod(ctx), l.removePod(ctx)); err != nil {
		return err
	}
	l.config.Metadata.Attempt++
	return l.runPod(ctx)
}

func (l *life) create(ctx context.Context) error {
	r, err := l.n.client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: l.pod, SandboxConfig: l.config, Config: l.ctr})
	if err == nil {
		l.id = r.GetContainerId()
	}
	return err
}

func (l *life) createAgain(ctx context.Context) error {
	c, err := l.findContainer(ctx)
	switch {
	case err != nil:
		return err
	case c == nil:
		return l.create(ctx)
	case c.GetState() != cri.ContainerState_CONTAINER_CREATED:
		return fmt.Errorf("the container is %s", c.GetState())
	}
	l.id = c.GetId()
	return nil
}

func (l *life) start(ctx context.Context) error {
	_, err := l.n.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: l.id})
	return err
}

// startAgain makes another container if this one has failed, as kubelet does.
func (l *life) startAgain(ctx context.Context) error {
	r, err := l.n.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: l.id})
	if err != nil {
		return err
	}
	switch s := r.GetStatus(); s.GetState() {
	case cri.ContainerState_CONTAINER_RUNNING:
		return nil
	case cri.ContainerState_CONTAINER_CREATED:
		return l.start(ctx)
	case cri.ContainerState_CONTAINER_EXITED:
		if s.GetExitCode() == 0 || s.GetReason() == "" || s.GetFinishedAt() < s.GetCreatedAt() {
			return fmt.Errorf("it is said to have exited with %d, reason %q, at %d", s.GetExitCode(), s.GetReason(), s.GetFinishedAt())
		}
		if err := l.remove(ctx); err != nil {
			return err
		}
		l.ctr.Metadata.Attempt++
		if err := l.create(ctx); err != nil {
			return err
		}
		return l.start(ctx)
	default:
		return fmt.Errorf("the container is %s", s.GetState())
	}
}

func (l *life) stop(ctx context.Context) error {
	_, err := l.n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: l.id})
	return err
}

func (l *life) remove(ctx context.Context) error {
	_, err := l.n.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: l.id})
	return err
}

func (l *life) stopPod(ctx context.Context) error {
	_, err := l.n.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: l.pod})
	return err
}

func (l *life) removePod(ctx context.Context) error {
	_, err := l.n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: l.pod})
	return err
}

// findPod looks for the sandbox as kubelet does: by its name.
func (l *life) findPod(ctx context.Context) (*cri.PodSandbox, error) {
	r, err := l.n.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	for _, p := range r.GetItems() {
		if p.GetMetadata().GetName() == l.config.GetMetadata().GetName() && p.GetMetadata().GetAttempt() == l.config.GetMetadata().GetAttempt() {
			return p, nil
		}
	}
	return nil, err
}

func (l *life) findContainer(ctx context.Context) (*cri.Container, error) {
	r, err := l.n.client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: l.pod}})
	if l.pod == "" || len(r.GetContainers()) == 0 {
		return nil, err
	}
	return r.GetContainers()[0], nil
}

// state says in a word what the client finds.
func (l *life) state() string {
	ctx, cancel := l.context()
	defer cancel()
	p, err := l.findPod(ctx)
	if err != nil {
		return "error " + status.Code(err).String()
	}
	if p == nil {
		return "gone"
	}
	if l.pod != "" {
		if c, err := l.findContainer(ctx); err == nil && c != nil {
			return map[cri.ContainerState]string{
				cri.ContainerState_CONTAINER_CREATED: "created", cri.ContainerState_CONTAINER_RUNNING: "running",
				cri.ContainerState_CONTAINER_EXITED: "exited", cri.ContainerState_CONTAINER_UNKNOWN: "UNKNOWN",
			}[c.GetState()]
		}
	}
	if p.GetState() == cri.PodSandboxState_SANDBOX_READY {
		return "ready"
	}
	return "not ready"
}

// code is what a call's end is told as in a table.
func code(err error) string {
	if err == nil {
		return "ok"
	}
	c := status.Code(err)
	for e := err; c == codes.Unknown && e != nil; e = errors.Unwrap(e) {
		c = status.Code(e)
	}
	return c.String()
}
