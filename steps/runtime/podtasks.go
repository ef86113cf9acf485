// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

const (
	// deleteTimeout bounds how long a shim is waited for that was asked to delete a container.
	deleteTimeout = 20 * time.Second
	// aliveTimeout is how long it may take to give a sign of life before. A shim takes
	// microseconds for that, so this is for a machine that is overloaded.
	aliveTimeout = 5 * time.Second
)

// Codes of containers whose own exit code nobody has seen.
const (
	exitKilled  = 137
	exitUnknown = 255
)

// podTasks are the tasks of a pod with our own shim.
type podTasks struct {
	m       *Manager
	pod     Pod
	handler Handler
}

func (t *podTasks) conn(ctx context.Context) (*conn, error) {
	return t.m.dial(ctx, t.pod.Address)
}

// Create makes the container. If ctx ends first the creation goes on, and
// Delete waits for it: what was asked of the shim cannot be taken back otherwise.
func (t *podTasks) Create(ctx context.Context, r CreateRequest) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	c, err := t.conn(ctx)
	if err != nil {
		return 0, err
	}
	if err := bundle.RemoveExit(r.Bundle); err != nil {
		return 0, err
	}
	req := &shimapi.CreateRequest{
		Id: r.ID, Bundle: r.Bundle, Terminal: r.Terminal, Stdin: r.Stdin, StdinOnce: r.StdinOnce,
		LogPath: r.LogPath, LogDir: r.LogDir, MaxLogLine: int32(t.m.cfg.MaxLogLine), //nolint:gosec // configured, small
		Binary: t.handler.Binary, Root: t.root(), SystemdCgroup: t.handler.SystemdCgroup,
		Checkpoint: r.Checkpoint,
	}
	type result struct {
		pid int32
		err error
	}
	done, finish := make(chan result, 1), t.m.beginCreate(r.ID)
	go func() {
		defer finish()
		resp, err := c.pod.Create(context.WithoutCancel(ctx), req)
		done <- result{resp.GetPid(), err}
	}()
	select {
	case res := <-done:
		return int(res.pid), native(res.err)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// beginCreate notes that a creation is on its way, until the function it gives is called.
func (m *Manager) beginCreate(id string) func() {
	c := make(chan struct{})
	m.mu.Lock()
	m.creating[id] = c
	m.mu.Unlock()
	return func() {
		m.mu.Lock()
		if m.creating[id] == c {
			delete(m.creating, id)
		}
		m.mu.Unlock()
		close(c)
	}
}

// awaitCreate waits for a creation that is on its way.
func (m *Manager) awaitCreate(ctx context.Context, id string) error {
	m.mu.Lock()
	creating := m.creating[id]
	m.mu.Unlock()
	if creating == nil {
		return nil
	}
	select {
	case <-creating:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *podTasks) root() string { return t.m.runcRoot(t.handler, filepath.Dir(t.pod.Address)) }

func (t *podTasks) Start(ctx context.Context, id string) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	_, err = c.tasks.Start(ctx, &taskapi.StartRequest{ID: id})
	return native(err)
}

func (t *podTasks) Kill(ctx context.Context, id string, signal uint32, all bool) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	_, err = c.tasks.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: signal, All: all})
	return native(err)
}

func (t *podTasks) Delete(ctx context.Context, id, dir string) (Exit, error) {
	asked, cancel := context.WithTimeout(ctx, deleteTimeout)
	exit, err := t.askDelete(asked, id)
	cancel()
	if ctx.Err() != nil {
		return Exit{}, fmt.Errorf("delete container %s: %w", id, ctx.Err())
	}
	// Also when the shim has done it, or knows nothing of it: a runtime that was
	// interrupted leaves things that it does not know of.
	there, ferr := forceDelete(ctx, ociState{t.handler.Binary, filepath.Join(t.root(), t.m.cfg.Namespace), id, dir})
	if ferr != nil {
		return Exit{}, fmt.Errorf("delete container %s: %w", id, ferr)
	}
	if err == nil {
		return exit, nil
	}
	return keptExit(dir, there)
}

// askDelete lets the shim delete the container, after what is on its way to it.
func (t *podTasks) askDelete(ctx context.Context, id string) (Exit, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return Exit{}, err
	}
	// It may wait long for the OCI runtime, but a shim that says nothing at all hangs itself.
	if err := c.alive(ctx, aliveTimeout); err != nil {
		return Exit{}, err
	}
	resp, err := c.pod.Delete(ctx, &shimapi.ContainerRequest{Id: id})
	for errdefs.IsNotFound(native(err)) {
		t.m.mu.Lock()
		creating := t.m.creating[id]
		t.m.mu.Unlock()
		if creating == nil {
			break
		}
		select { // the creation had not reached the shim, or fails just now
		case <-creating:
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return Exit{}, ctx.Err()
		}
		resp, err = c.pod.Delete(ctx, &shimapi.ContainerRequest{Id: id})
	}
	if err != nil {
		return Exit{}, native(err)
	}
	return exitOf(resp), nil
}

// keptExit is the exit that the bundle has of a container that no shim knows of.
func keptExit(dir string, killed bool) (Exit, error) {
	if killed {
		return keepExit(dir, Exit{Code: exitKilled, At: time.Now()})
	}
	e, err := bundle.ReadExit(dir)
	if errdefs.IsNotFound(err) {
		return Exit{Code: exitUnknown, At: time.Now()}, nil
	}
	return Exit(e), err
}

// KeepExit keeps in the bundle how a container ended that no shim has seen end, unless that is
// kept already, and gives what is kept then.
func (m *Manager) KeepExit(id string, e Exit) (Exit, error) { return keepExit(m.bundle(id), e) }

func keepExit(dir string, e Exit) (Exit, error) {
	kept, err := bundle.ReadExit(dir)
	if err == nil {
		return Exit(kept), nil
	}
	if errdefs.IsNotFound(err) {
		err = bundle.WriteExit(dir, bundle.Exit(e))
	}
	return e, err
}

func exitOf(r *shimapi.ExitResponse) Exit {
	return Exit{Code: r.Code, At: time.Unix(0, r.At), OOMKilled: r.OomKilled}
}

func (t *podTasks) Wait(ctx context.Context, id string) (Exit, error) {
	c, err := t.conn(ctx)
	if err == nil {
		var resp *shimapi.ExitResponse
		if resp, err = c.pod.Wait(ctx, &shimapi.ContainerRequest{Id: id}); err == nil {
			return exitOf(resp), nil
		}
	}
	if e, kept := bundle.ReadExit(t.m.bundle(id)); kept == nil && ctx.Err() == nil {
		return Exit(e), nil
	}
	return Exit{}, native(err)
}

func (t *podTasks) State(ctx context.Context, id string) (State, error) {
	kept, kerr := bundle.ReadExit(t.m.bundle(id))
	c, err := t.conn(ctx)
	if err == nil {
		var r *taskapi.StateResponse
		if r, err = c.tasks.State(ctx, &taskapi.StateRequest{ID: id}); err == nil {
			return stateOf(r, kept, kerr == nil), nil
		}
	}
	if kerr == nil && ctx.Err() == nil {
		return State{Status: StatusStopped, Exit: Exit(kept)}, nil
	}
	return State{}, native(err)
}

func stateOf(r *taskapi.StateResponse, kept bundle.Exit, known bool) State {
	s := State{Status: statusOf(r.Status), PID: int(r.Pid)}
	if s.Status == StatusStopped {
		s.Exit = Exit{Code: r.ExitStatus, At: r.ExitedAt.AsTime()}
		if known {
			s.Exit = Exit(kept)
		}
	}
	return s
}

func statusOf(s tasktypes.Status) Status {
	switch s {
	case tasktypes.Status_CREATED:
		return StatusCreated
	case tasktypes.Status_RUNNING:
		return StatusRunning
	case tasktypes.Status_STOPPED:
		return StatusStopped
	case tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		return StatusPaused
	default:
		return StatusUnknown
	}
}

func (t *podTasks) Pids(ctx context.Context, id string) ([]int, error) {
	c, err := t.conn(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.tasks.Pids(ctx, &taskapi.PidsRequest{ID: id})
	if err != nil {
		return nil, native(err)
	}
	pids := make([]int, 0, len(r.Processes))
	for _, p := range r.Processes {
		pids = append(pids, int(p.Pid))
	}
	return pids, nil
}

func (t *podTasks) Update(ctx context.Context, id string, r *specs.LinuxResources, annotations map[string]string) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = c.tasks.Update(ctx, &taskapi.UpdateTaskRequest{ID: id, Annotations: annotations,
		Resources: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: value}})
	return native(err)
}

func (t *podTasks) ReopenLog(ctx context.Context, id string) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	_, err = c.pod.Reopen(ctx, &shimapi.ContainerRequest{Id: id})
	return native(err)
}
