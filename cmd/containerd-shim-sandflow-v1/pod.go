// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

const (
	// drainGrace is how long after a container's end its output may go on.
	drainGrace = 3 * time.Second
	// killGrace is how long a killed process may take to be gone.
	killGrace = 10 * time.Second
)

// pod is the shim's own service, and what all its services share.
type pod struct {
	ctx   context.Context
	tasks taskapi.TTRPCTaskService
	sd    shutdown.Service
	init  *initProcess

	consoles consoles

	mu         sync.Mutex
	containers map[string]*container
	closing    bool
}

func newPod(ctx context.Context, o options, sd shutdown.Service) *pod {
	return &pod{ctx: ctx, sd: sd, init: newInit(o), containers: map[string]*container{}}
}

// Info answers once the shim is ready.
func (p *pod) Info(ctx context.Context, _ *shimapi.InfoRequest) (*shimapi.InfoResponse, error) {
	pid, err := p.init.wait(ctx)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &shimapi.InfoResponse{
		Pid: int32(os.Getpid()), InitPid: int32(pid), //nolint:gosec // PIDs are below 2^22
		Protocol: shimapi.Protocol,
	}, nil
}

// get gives a container; it may still be in the making.
func (p *pod) get(id string) (*container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// add enters a container under its ID, before it is made.
func (p *pod) add(c *container) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return fmt.Errorf("create container %s: pod is shutting down: %w", c.id, errdefs.ErrUnavailable)
	}
	if p.containers[c.id] != nil {
		return fmt.Errorf("create container %s: %w", c.id, errdefs.ErrAlreadyExists)
	}
	p.containers[c.id] = c
	return nil
}

func (p *pod) remove(c *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.containers[c.id] == c {
		delete(p.containers, c.id)
	}
}

// Wait waits for a container's end and its last output.
func (p *pod) Wait(ctx context.Context, r *shimapi.ContainerRequest) (*shimapi.ExitResponse, error) {
	c, err := p.get(r.Id)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	select {
	case <-c.drained:
		return c.response(), nil
	case <-c.removed: // its creation failed
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s: %w", r.Id, errdefs.ErrNotFound))
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
}

// Reopen opens a container's log anew.
func (p *pod) Reopen(_ context.Context, r *shimapi.ContainerRequest) (*shimapi.Empty, error) {
	c, err := p.get(r.Id)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if c.hub == nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("reopen log of container %s: the shim does not own it: %w", r.Id, errdefs.ErrFailedPrecondition))
	}
	return &shimapi.Empty{}, errgrpc.ToGRPC(c.hub.Reopen())
}

// Delete removes a container, killing it if it runs, and ending its creation if that hangs.
func (p *pod) Delete(ctx context.Context, r *shimapi.ContainerRequest) (*shimapi.ExitResponse, error) {
	c, err := p.get(r.Id)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if err := p.delete(ctx, c); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return c.response(), nil
}

func (p *pod) delete(ctx context.Context, c *container) error {
	c.cancel() // what is in the making is not waited for
	select {
	case <-c.made:
	case <-ctx.Done():
		return fmt.Errorf("delete container %s: its creation has not ended: %w", c.id, ctx.Err())
	}
	if c.failed != nil {
		return fmt.Errorf("container %s: %w", c.id, errdefs.ErrNotFound)
	}
	if err := p.kill(ctx, c); err != nil {
		return err
	}
	_, err := p.tasks.Delete(ctx, &taskapi.DeleteRequest{ID: c.id})
	if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return fmt.Errorf("delete container %s: %w", c.id, errgrpc.ToNative(err))
	}
	p.remove(c)
	c.release()
	return nil
}

// kill ends a container that still runs and waits for that.
func (p *pod) kill(ctx context.Context, c *container) error {
	if err := c.operation.giveUp(ctx); err != nil {
		return fmt.Errorf("kill container %s: %w", c.id, err)
	}
	if c.initPID() == 0 {
		return nil // it was to be restored, and was not
	}
	select {
	case <-c.drained:
		return nil
	case <-c.exited: // only its output is missing
	default:
		_ = c.signal(unix.SIGKILL)
		if p.paused(ctx, c.id) { // a frozen process does not die on cgroup v1
			_, _ = p.tasks.Resume(ctx, &taskapi.ResumeRequest{ID: c.id})
		}
	}
	t := time.NewTimer(killGrace)
	defer t.Stop()
	select {
	case <-c.drained:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill container %s: %w", c.id, ctx.Err())
	case <-t.C:
		return fmt.Errorf("kill container %s: process %d is still there after %s: %w", c.id, c.initPID(), killGrace, errdefs.ErrUnavailable)
	}
}

// paused tells whether a container is frozen.
func (p *pod) paused(ctx context.Context, id string) bool {
	s, err := p.tasks.State(ctx, &taskapi.StateRequest{ID: id})
	return err == nil && s.Status == tasktypes.Status_PAUSED
}

// Shutdown kills and removes all containers, and ends the shim after it has answered.
func (p *pod) Shutdown(ctx context.Context, _ *shimapi.Empty) (*shimapi.Empty, error) {
	p.mu.Lock()
	p.closing = true
	all := make([]*container, 0, len(p.containers))
	for _, c := range p.containers {
		all = append(all, c)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			if err := p.delete(ctx, c); err != nil && !errdefs.IsNotFound(err) {
				log.G(ctx).WithError(err).Error("shut down")
			}
		})
	}
	wg.Wait()
	p.init.stop()
	go p.sd.Shutdown()
	return &shimapi.Empty{}, nil
}

// settle lets the answers that are on their way go out before the process ends.
func (p *pod) settle(server *ttrpc.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = server.Shutdown(ctx)
}
