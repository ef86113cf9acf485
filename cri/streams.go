// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// resolver tells the streaming server where a container or a pod is.
type resolver struct{ s *Server }

// ContainerTasks gives what runs a running container, its bundle and its streams.
func (r resolver) ContainerTasks(_ context.Context, id string) (tasks runtime.Tasks, bundle string, tty, stdin bool, err error) {
	c, err := r.s.findContainer(id)
	if err != nil {
		return nil, "", false, false, err
	}
	if err := c.running(); err != nil {
		return nil, "", false, false, err
	}
	spec, err := steps.ContainerSpec.Need(c.View)
	if err != nil {
		return nil, "", false, false, err
	}
	tasks, err = r.s.services.Runtime.Tasks(r.s.monitor.podOf(c))
	return tasks, spec.Bundle, c.config.GetTty(), c.config.GetStdin(), err
}

// PodNetNS gives the network namespace of a ready pod; empty is the node's.
func (r resolver) PodNetNS(_ context.Context, id string) (string, error) {
	p, err := r.s.readyPod(id)
	if err != nil || p.hostNetwork() {
		return "", err
	}
	ns, err := steps.PodNamespaces.Need(p.View)
	if err == nil && ns.Net == "" {
		err = fmt.Errorf("sandbox %s has no network namespace: %w", p.ID, errdefs.ErrFailedPrecondition)
	}
	return ns.Net, err
}

// ExecSync runs a command in a container to its end.
func (s *Server) ExecSync(ctx context.Context, r *criapi.ExecSyncRequest) (*criapi.ExecSyncResponse, error) {
	r.ContainerId = s.wholeID(steps.Container, r.GetContainerId())
	return s.stream.ExecSync(ctx, r)
}

// Exec gives a URL, good for one use, at which a command runs in a container.
func (s *Server) Exec(_ context.Context, r *criapi.ExecRequest) (*criapi.ExecResponse, error) {
	r.ContainerId = s.wholeID(steps.Container, r.GetContainerId())
	return s.stream.GetExec(r)
}

// Attach gives a URL, good for one use, at which a container's streams are joined.
func (s *Server) Attach(_ context.Context, r *criapi.AttachRequest) (*criapi.AttachResponse, error) {
	r.ContainerId = s.wholeID(steps.Container, r.GetContainerId())
	return s.stream.GetAttach(r)
}

// PortForward gives a URL, good for one use, at which ports of a pod are reached.
func (s *Server) PortForward(_ context.Context, r *criapi.PortForwardRequest) (*criapi.PortForwardResponse, error) {
	r.PodSandboxId = s.wholeID(steps.Sandbox, r.GetPodSandboxId())
	return s.stream.GetPortForward(r)
}

// wholeID completes a unique prefix. Anything else is left for the resolver to refuse.
func (s *Server) wholeID(workflow, id string) string {
	if v, err := find(s.engine, workflow, workflow, id); err == nil {
		return v.ID
	}
	return id
}
