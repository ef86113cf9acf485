// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	runcopts "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
	"github.com/sandflow-cri/sandflow/steps/stdio"
)

// createTimeout bounds a creation whose caller has gone.
const createTimeout = 2 * time.Minute

// container is a container of the pod.
//
//	entered → made → exited → drained → removed
//	       ↘ failed → removed
type container struct {
	id, bundle string
	cancel     context.CancelFunc // ends the creation

	made   chan struct{} // closed when the creation has ended
	failed error         // why; set before made is closed
	hub    *stdio.Hub    // nil if the caller owns stdio; set before made is closed
	// operation is the dump or restoration in flight; freezing is held while it is frozen or thawed.
	operation operation
	freezing  sync.Mutex
	// closeLater closes the ends of the pipes that the task service opens when a container is
	// restored; nil if it is not to be.
	closeLater func()
	// closeStdin closes the end of stdin's pipe that is kept for the runtime.
	closeStdin func()

	fdLock sync.Mutex // guards pid, memory and pidfd; held while pidfd is used or closed
	pid    int        // 0 until it is restored, if it is to be
	memory string     // directory of its memory cgroup
	pidfd  int        // -1 if there is none (any more)

	exited  chan struct{} // closed when the process has ended
	exit    bundle.Exit   // set before exited is closed
	drained chan struct{} // closed when its output is logged too
	removed chan struct{}
}

// Create makes a container whose stdio the shim owns. It is finished, or
// undone, also when the caller goes away: whoever deletes it finds it whole.
func (p *pod) Create(ctx context.Context, r *shimapi.CreateRequest) (*shimapi.CreateResponse, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	c := &container{
		id: r.Id, bundle: r.Bundle, cancel: cancel, pidfd: -1,
		made: make(chan struct{}), exited: make(chan struct{}), drained: make(chan struct{}), removed: make(chan struct{}),
	}
	if err := p.add(c); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if err := p.create(ctx, c, r); err != nil {
		c.failed = err
		p.remove(c)
		close(c.made)
		c.release()
		return nil, errgrpc.ToGRPC(err)
	}
	close(c.made)
	return &shimapi.CreateResponse{Pid: int32(c.initPID())}, nil //nolint:gosec // PIDs are below 2^22
}

func (p *pod) create(ctx context.Context, c *container, r *shimapi.CreateRequest) error {
	pipes, err := newPipes(r.Stdin)
	if err != nil {
		return err
	}
	if r.Checkpoint == "" {
		defer pipes.closeTheirs()
	} else {
		c.closeLater = pipes.closeTheirs
	}
	c.closeStdin = pipes.closeStdin
	c.hub, err = stdio.New(stdio.Options{
		LogPath: r.LogPath, LogDir: r.LogDir, MaxLine: int(r.MaxLogLine), Stdin: pipes.ours.stdin,
		StdinOnce:  r.StdinOnce && !r.Terminal, // closing a terminal would hang up on the container
		OnLogError: func(err error) { log.G(ctx).WithField("container", c.id).Warn(err) },
		OnStdinClose: func() {
			_, _ = p.tasks.CloseIO(p.ctx, &taskapi.CloseIORequest{ID: c.id, Stdin: true})
		},
	})
	if err != nil {
		pipes.closeOurs()
		return err
	}
	c.hub.Start(pipes.ours.stdout, pipes.ours.stderr)
	opts, err := createOptions(r)
	if err != nil {
		return err
	}
	req := &taskapi.CreateTaskRequest{ID: r.Id, Bundle: r.Bundle, Terminal: r.Terminal, Options: opts,
		Checkpoint: r.Checkpoint, Stdin: pipes.path(pipes.theirs.stdin), Stdout: pipes.path(pipes.theirs.stdout)}
	if !r.Terminal {
		req.Stderr = pipes.path(pipes.theirs.stderr)
	}
	resp, err := p.tasks.Create(ctx, req)
	if err != nil {
		return errgrpc.ToNative(err) // it has the runtime's own words
	}
	if resp.Pid != 0 {
		c.know(ctx, int(resp.Pid))
	}
	return nil
}

// know takes note of the container's init.
func (c *container) know(ctx context.Context, pid int) {
	c.fdLock.Lock()
	defer c.fdLock.Unlock()
	var err error
	c.pid = pid
	if c.pidfd, err = unix.PidfdOpen(c.pid, 0); err != nil {
		c.pidfd = -1 // already dead: there is nothing to signal
	}
	if c.memory, err = bundle.MemoryCgroup(c.pid); err != nil {
		log.G(ctx).WithError(err).Warnf("out-of-memory kills of container %s will not be seen", c.id)
	}
}

func (c *container) initPID() int {
	c.fdLock.Lock()
	defer c.fdLock.Unlock()
	return c.pid
}

func createOptions(r *shimapi.CreateRequest) (*anypb.Any, error) {
	uid, gid, err := rootIDs(r.Bundle)
	if err != nil {
		return nil, err
	}
	opts := &runcopts.Options{
		BinaryName: r.Binary, Root: r.Root, SystemdCgroup: r.SystemdCgroup, IoUid: uid, IoGid: gid,
	}
	if r.Checkpoint != "" {
		opts.CriuWorkPath = filepath.Dir(r.Checkpoint) // CRIU's log lies beside the dump
	}
	return typeurl.MarshalAnyToProto(opts)
}

// rootIDs are the host's IDs of the container's root, which must own its stdio.
func rootIDs(dir string) (uid, gid uint32, err error) {
	s, err := bundle.ReadSpec(dir)
	if err != nil {
		return 0, 0, err
	}
	if s.Linux == nil {
		return 0, 0, nil
	}
	return hostID(s.Linux.UIDMappings), hostID(s.Linux.GIDMappings), nil
}

func hostID(maps []specs.LinuxIDMapping) uint32 {
	for _, m := range maps {
		if m.ContainerID == 0 {
			return m.HostID
		}
	}
	return 0
}

// end records the container's exit. It is called once, by the publisher.
func (c *container) end(ctx context.Context, code uint32, at time.Time) {
	c.exit = bundle.Exit{Code: code, At: at}
	c.fdLock.Lock()
	memory := c.memory
	c.fdLock.Unlock()
	kills, err := bundle.OOMKills(memory)
	if err != nil {
		log.G(ctx).WithError(err).Warnf("count out-of-memory kills of container %s", c.id)
	}
	c.exit.OOMKilled = kills > 0
	if err := bundle.WriteExit(c.bundle, c.exit); err != nil {
		log.G(ctx).WithError(err).Errorf("record exit of container %s", c.id)
	}
	close(c.exited)
	go func() {
		if c.hub != nil {
			c.hub.Finish(drainGrace)
		}
		close(c.drained)
	}()
}

func (c *container) response() *shimapi.ExitResponse {
	return &shimapi.ExitResponse{Code: c.exit.Code, At: c.exit.At.UnixNano(), OomKilled: c.exit.OOMKilled}
}

// signal signals the container's init, and never another process that got its PID.
func (c *container) signal(sig unix.Signal) error {
	c.fdLock.Lock()
	defer c.fdLock.Unlock()
	if c.pidfd >= 0 {
		return unix.PidfdSendSignal(c.pidfd, sig, nil, 0)
	}
	return unix.ESRCH
}

// release gives back what the container held in the shim.
func (c *container) release() {
	close(c.removed)
	if c.hub != nil {
		_ = c.hub.Close()
	}
	if c.closeStdin != nil {
		c.closeStdin()
	}
	if c.closeLater != nil {
		c.closeLater()
	}
	c.fdLock.Lock()
	defer c.fdLock.Unlock()
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
		c.pidfd = -1
	}
}
