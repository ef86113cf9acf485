// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetExec gives the URL at which a client may run a command in a container.
func (s *Server) GetExec(r *cri.ExecRequest) (*cri.ExecResponse, error) {
	if err := checkStreams(r.GetTty(), r.GetStdin(), r.GetStdout(), r.GetStderr()); err != nil {
		return nil, fmt.Errorf("exec in container %q: %w", r.GetContainerId(), err)
	}
	if err := s.checkExec(r.GetContainerId(), r.GetCmd()); err != nil {
		return nil, fmt.Errorf("exec in container %q: %w", r.GetContainerId(), err)
	}
	u, err := s.url("exec", r)
	if err != nil {
		return nil, fmt.Errorf("exec in container %q: %w", r.GetContainerId(), err)
	}
	return &cri.ExecResponse{Url: u}, nil
}

// GetAttach gives the URL at which a client may join a container's streams.
func (s *Server) GetAttach(r *cri.AttachRequest) (*cri.AttachResponse, error) {
	if err := checkStreams(r.GetTty(), r.GetStdin(), r.GetStdout(), r.GetStderr()); err != nil {
		return nil, fmt.Errorf("attach to container %q: %w", r.GetContainerId(), err)
	}
	if err := s.running(r.GetContainerId()); err != nil {
		return nil, fmt.Errorf("attach to container %q: %w", r.GetContainerId(), err)
	}
	u, err := s.url("attach", r)
	if err != nil {
		return nil, fmt.Errorf("attach to container %q: %w", r.GetContainerId(), err)
	}
	return &cri.AttachResponse{Url: u}, nil
}

// GetPortForward gives the URL at which a client may connect to ports of a pod.
func (s *Server) GetPortForward(r *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	pod := r.GetPodSandboxId()
	if pod == "" {
		return nil, fmt.Errorf("forward ports: no pod sandbox ID: %w", errdefs.ErrInvalidArgument)
	}
	for _, port := range r.GetPort() {
		if err := checkPort(port); err != nil {
			return nil, fmt.Errorf("forward ports of pod %s: %w", pod, err)
		}
	}
	ctx, err := s.context()
	if err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", pod, err)
	}
	if _, err := s.resolver.PodNetNS(ctx, pod); err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", pod, err)
	}
	u, err := s.url("portforward", r)
	if err != nil {
		return nil, fmt.Errorf("forward ports of pod %s: %w", pod, err)
	}
	return &cri.PortForwardResponse{Url: u}, nil
}

// checkStreams refuses what the CRI's ExecRequest and AttachRequest forbid.
func checkStreams(tty, stdin, stdout, stderr bool) error {
	if tty && stderr {
		return fmt.Errorf("a terminal has no stderr of its own, tty and stderr exclude each other: %w",
			errdefs.ErrInvalidArgument)
	}
	if !stdin && !stdout && !stderr {
		return fmt.Errorf("none of stdin, stdout and stderr is asked for: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

func checkPort(port int32) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d is not between 1 and 65535: %w", port, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (s *Server) checkExec(id string, cmd []string) error {
	if len(cmd) == 0 || cmd[0] == "" {
		return fmt.Errorf("no command: %w", errdefs.ErrInvalidArgument)
	}
	return s.running(id)
}

// running says whether a URL for the container makes sense now.
func (s *Server) running(id string) error {
	ctx, err := s.context()
	if err != nil {
		return err
	}
	_, err = s.target(ctx, id)
	return err
}

// target finds a running container.
func (s *Server) target(ctx context.Context, id string) (Target, error) {
	if id == "" {
		return Target{}, fmt.Errorf("no container ID: %w", errdefs.ErrInvalidArgument)
	}
	return s.resolver.ContainerTasks(ctx, id)
}
