// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/streaming"
	"github.com/sandflow-cri/sandflow/steps"
)

// resolver tells the streaming server where a container or a pod is.
type resolver struct{ s *Server }

// ContainerTasks gives what runs a running container, its bundle and its streams.
func (r resolver) ContainerTasks(_ context.Context, id string) (streaming.Target, error) {
	c, err := r.s.findContainer(id)
	if err != nil {
		return streaming.Target{}, err
	}
	if err := c.running(); err != nil {
		return streaming.Target{}, err
	}
	spec, err := steps.ContainerSpec.Need(c.View)
	if err != nil {
		return streaming.Target{}, err
	}
	tasks, err := r.s.services.Runtime.Tasks(r.s.monitor.podOf(c))
	if err != nil {
		return streaming.Target{}, err
	}
	return streaming.Target{
		ID: c.ID, Tasks: tasks, Bundle: spec.Bundle, TTY: c.config.GetTty(), Stdin: c.config.GetStdin(),
	}, nil
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
	return s.stream.ExecSync(ctx, r)
}

// Exec gives a URL, good for one use, at which a command runs in a container.
func (s *Server) Exec(_ context.Context, r *criapi.ExecRequest) (*criapi.ExecResponse, error) {
	return s.stream.GetExec(r) //nolint:contextcheck // the URL is used after this request
}

// Attach gives a URL, good for one use, at which a container's streams are joined.
func (s *Server) Attach(_ context.Context, r *criapi.AttachRequest) (*criapi.AttachResponse, error) {
	return s.stream.GetAttach(r) //nolint:contextcheck // the URL is used after this request
}

// PortForward gives a URL, good for one use, at which ports of a pod are reached.
func (s *Server) PortForward(_ context.Context, r *criapi.PortForwardRequest) (*criapi.PortForwardResponse, error) {
	return s.stream.GetPortForward(r) //nolint:contextcheck // the URL is used after this request
}
