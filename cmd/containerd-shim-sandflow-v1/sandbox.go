// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

// States of a sandbox, as containerd's sandboxer names them.
const (
	stateReady    = "SANDBOX_READY"
	stateNotReady = "SANDBOX_NOTREADY"
)

// sandbox serves containerd's sandbox API: the pod is the shim itself.
type sandbox struct {
	pod *pod

	mu      sync.Mutex
	state   string
	created time.Time
	exited  time.Time
	done    chan struct{}
}

func newSandbox(p *pod) *sandbox {
	return &sandbox{pod: p, state: stateNotReady, created: time.Now(), done: make(chan struct{})}
}

func (s *sandbox) CreateSandbox(context.Context, *sandboxapi.CreateSandboxRequest) (*sandboxapi.CreateSandboxResponse, error) {
	return &sandboxapi.CreateSandboxResponse{}, nil
}

func (s *sandbox) StartSandbox(ctx context.Context, _ *sandboxapi.StartSandboxRequest) (*sandboxapi.StartSandboxResponse, error) {
	if _, err := s.pod.init.wait(ctx); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = stateReady
	return &sandboxapi.StartSandboxResponse{Pid: uint32(os.Getpid()), CreatedAt: timestamppb.New(s.created)}, nil //nolint:gosec // a PID
}

func (s *sandbox) Platform(context.Context, *sandboxapi.PlatformRequest) (*sandboxapi.PlatformResponse, error) {
	return &sandboxapi.PlatformResponse{Platform: &types.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}}, nil
}

func (s *sandbox) StopSandbox(context.Context, *sandboxapi.StopSandboxRequest) (*sandboxapi.StopSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = stateNotReady
	if s.exited.IsZero() {
		s.exited = time.Now()
		close(s.done)
	}
	return &sandboxapi.StopSandboxResponse{}, nil
}

func (s *sandbox) WaitSandbox(ctx context.Context, _ *sandboxapi.WaitSandboxRequest) (*sandboxapi.WaitSandboxResponse, error) {
	select {
	case <-s.done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return &sandboxapi.WaitSandboxResponse{ExitedAt: timestamppb.New(s.exited)}, nil
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
}

func (s *sandbox) SandboxStatus(_ context.Context, r *sandboxapi.SandboxStatusRequest) (*sandboxapi.SandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &sandboxapi.SandboxStatusResponse{SandboxID: r.SandboxID, Pid: uint32(os.Getpid()), State: s.state, //nolint:gosec // a PID
		CreatedAt: timestamppb.New(s.created)}, nil
}

func (s *sandbox) PingSandbox(context.Context, *sandboxapi.PingRequest) (*sandboxapi.PingResponse, error) {
	return &sandboxapi.PingResponse{}, nil
}

func (s *sandbox) ShutdownSandbox(ctx context.Context, r *sandboxapi.ShutdownSandboxRequest) (*sandboxapi.ShutdownSandboxResponse, error) {
	if _, err := s.StopSandbox(ctx, &sandboxapi.StopSandboxRequest{SandboxID: r.SandboxID}); err != nil {
		return nil, err
	}
	if _, err := s.pod.Shutdown(ctx, &shimapi.Empty{}); err != nil {
		return nil, err
	}
	return &sandboxapi.ShutdownSandboxResponse{}, nil
}

func (s *sandbox) SandboxMetrics(context.Context, *sandboxapi.SandboxMetricsRequest) (*sandboxapi.SandboxMetricsResponse, error) {
	return nil, errgrpc.ToGRPC(fmt.Errorf("sandbox metrics: the daemon reads the cgroups itself: %w", errdefs.ErrNotImplemented))
}

func (s *sandbox) UpdateSandbox(context.Context, *sandboxapi.UpdateSandboxRequest) (*sandboxapi.UpdateSandboxResponse, error) {
	return &sandboxapi.UpdateSandboxResponse{}, nil
}
