// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// taskService is containerd's task service with the ways of a pod's shim.
type taskService struct {
	taskapi.TTRPCTaskService
	pod *pod
}

// Shutdown is sent by containerd after every deleted task; this shim lives as long as its pod.
func (t *taskService) Shutdown(_ context.Context, r *taskapi.ShutdownRequest) (*ptypes.Empty, error) {
	if r.Now {
		go t.pod.sd.Shutdown()
	}
	return &ptypes.Empty{}, nil
}

// Delete of a container of ours also ends its streams.
func (t *taskService) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	c, err := t.pod.get(r.ID)
	if err != nil || r.ExecID != "" {
		return t.TTRPCTaskService.Delete(ctx, r)
	}
	if err := t.pod.delete(ctx, c); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &taskapi.DeleteResponse{Pid: uint32(c.initPID()), ExitStatus: c.exit.Code, ExitedAt: timestamppb.New(c.exit.At)}, nil //nolint:gosec // a PID
}

// Kill of one process needs no OCI runtime.
func (t *taskService) Kill(ctx context.Context, r *taskapi.KillRequest) (*ptypes.Empty, error) {
	c, err := t.pod.get(r.ID)
	if err != nil || r.ExecID != "" || r.All {
		return t.TTRPCTaskService.Kill(ctx, r)
	}
	if err := c.operation.giveUp(ctx); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("kill container %s: %w", r.ID, err))
	}
	if t.pod.paused(ctx, r.ID) { // a frozen process gets no signal; the runtime knows how to thaw it
		return t.TTRPCTaskService.Kill(ctx, r)
	}
	switch err := c.signal(unix.Signal(r.Signal)); {
	case err == nil:
		return &ptypes.Empty{}, nil
	case errors.Is(err, unix.ESRCH):
		return nil, errgrpc.ToGRPC(fmt.Errorf("kill container %s: process has ended: %w", r.ID, errdefs.ErrNotFound))
	default:
		return nil, errgrpc.ToGRPC(fmt.Errorf("kill container %s: %w: %w", r.ID, err, errdefs.ErrInvalidArgument))
	}
}

// Connect tells the shim's PID also before there is any container.
func (t *taskService) Connect(ctx context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	if _, err := t.pod.get(r.ID); err != nil {
		return &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid())}, nil //nolint:gosec,nilerr // a PID
	}
	return t.TTRPCTaskService.Connect(ctx, r)
}
