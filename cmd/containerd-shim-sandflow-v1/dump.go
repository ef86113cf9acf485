// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// operation is what may take long on a container and can be given up: a dump
// of its processes, or their restoration. There is one at a time.
type operation struct {
	mu     sync.Mutex
	cancel context.CancelFunc // nil if there is none
	ended  chan struct{}
}

// begin gives the context of an operation and the function that ends it.
func (o *operation) begin(ctx context.Context) (context.Context, func(), error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cancel != nil {
		return nil, nil, fmt.Errorf("it is being dumped or restored: %w", errdefs.ErrFailedPrecondition)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	o.cancel, o.ended = cancel, ended
	return ctx, func() {
		cancel()
		o.mu.Lock()
		defer o.mu.Unlock()
		o.cancel = nil
		close(ended)
	}, nil
}

// giveUp ends the operation that is in flight, if any, and waits until it has ended.
func (o *operation) giveUp(ctx context.Context) error {
	o.mu.Lock()
	cancel, ended := o.cancel, o.ended
	o.mu.Unlock()
	if cancel == nil {
		return nil
	}
	cancel()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("give up its dump or restoration: %w", ctx.Err())
	}
}

// Checkpoint dumps a container. It is given up when the container is resumed,
// killed or deleted: containerd's service would make these wait for it.
func (t *taskService) Checkpoint(ctx context.Context, r *taskapi.CheckpointTaskRequest) (*ptypes.Empty, error) {
	c, err := t.pod.get(r.ID)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	ctx, end, err := c.operation.begin(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint container %s: %w", r.ID, err))
	}
	defer end()
	return t.TTRPCTaskService.Checkpoint(ctx, r)
}

// Pause freezes a container that runs; one that is frozen already is let be.
func (t *taskService) Pause(ctx context.Context, r *taskapi.PauseRequest) (*ptypes.Empty, error) {
	c, err := t.pod.get(r.ID)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	c.freezing.Lock()
	defer c.freezing.Unlock()
	if t.pod.paused(ctx, r.ID) {
		return &ptypes.Empty{}, nil
	}
	return t.TTRPCTaskService.Pause(ctx, r)
}

// Resume gives up what is done to a frozen container and thaws it. One that is
// not frozen is let be.
func (t *taskService) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*ptypes.Empty, error) {
	c, err := t.pod.get(r.ID)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if err := c.operation.giveUp(ctx); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("resume container %s: %w", r.ID, err))
	}
	c.freezing.Lock() // a pause that is on its way has ended then
	defer c.freezing.Unlock()
	if !t.pod.paused(ctx, r.ID) {
		return &ptypes.Empty{}, nil
	}
	return t.TTRPCTaskService.Resume(ctx, r)
}

// Start of a container that is restored from a dump makes its processes only now.
func (t *taskService) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	c, err := t.pod.get(r.ID)
	if err != nil || r.ExecID != "" || c.closeLater == nil {
		return t.TTRPCTaskService.Start(ctx, r)
	}
	ctx, end, err := c.operation.begin(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("restore container %s: %w", r.ID, err))
	}
	defer end()
	defer c.closeLater()
	answer, err := t.TTRPCTaskService.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	c.know(ctx, int(answer.Pid))
	return answer, nil
}
