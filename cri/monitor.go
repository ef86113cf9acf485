// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// monitor watches what ends by itself: the processes of containers and the
// shims of pods. It owns one goroutine for each and waits for them in run.
//
// mu guards the maps alone; it is never held across a call that can block.
type monitor struct {
	engine  *engine.Engine
	runtime *runtime.Manager
	forget  func(id string)

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of run, which owns the watchers
	watchers sync.WaitGroup
	watched  map[string]bool // containers and pods with a watcher
	killed   map[string]bool // containers that are being taken down by force
}

func newMonitor(e *engine.Engine, m *runtime.Manager) *monitor {
	return &monitor{engine: e, runtime: m, watched: map[string]bool{}, killed: map[string]bool{}}
}

// run takes up what stands, and what more says, and watches until ctx ends.
func (m *monitor) run(ctx context.Context, more func()) {
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	for _, v := range m.engine.List(steps.Sandbox) {
		if v.Phase == engine.Standing && v.Station == steps.Ready {
			m.pod(v.ID) //nolint:contextcheck // see watch
		}
	}
	for _, v := range m.engine.List(steps.Container) {
		if v.Station == steps.Running && v.Phase == engine.Standing {
			m.container(v.ID) //nolint:contextcheck // see watch
		}
	}
	more()
	<-ctx.Done()
	m.watchers.Wait()
}

// watch runs f in a goroutine of the monitor's, once per id. It ends with run, and
// not with the request that brought it about.
func (m *monitor) watch(id string, f func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil || m.ctx.Err() != nil || m.watched[id] {
		return // run takes up what stands when it starts
	}
	m.watched[id] = true
	ctx := m.ctx
	m.watchers.Go(func() {
		f(ctx)
		m.mu.Lock()
		delete(m.watched, id)
		m.mu.Unlock()
	})
}

// left is closed when the sandbox does not stand at the top any more.
func (m *monitor) left(ctx context.Context, id string) <-chan struct{} {
	done := make(chan struct{})
	m.watchers.Go(func() {
		defer close(done)
		for {
			changed := m.engine.Watch(steps.Sandbox, id)
			if v, ok := m.engine.Get(steps.Sandbox, id); !ok || v.Station != steps.Ready || v.Phase != engine.Standing {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return done
}

// gone forgets a pod.
func (m *monitor) gone(id string) {
	m.forget(id)
}

// container waits for a container to end, records how, and takes its task down.
func (m *monitor) container(id string) {
	m.watch(id, func(ctx context.Context) {
		exit, err := m.await(ctx, id)
		if ctx.Err() != nil {
			return // the next daemon takes it up
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Lost sight of a container", "container", id)
		}
		m.ended(ctx, id, exit)
	})
}

// ended journals the exit, unless one is known, then deletes the task. The
// client that waits for the exit has its answer before the deletion.
func (m *monitor) ended(ctx context.Context, id string, exit steps.Exit) {
	err := m.recordExit(ctx, id, exit)
	if errors.Is(err, engine.ErrNotFound) {
		return
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not record an exit", "container", id)
	}
	m.forget(id)
	err = m.engine.Descend(ctx, steps.Container, steps.Stop, id, engine.DescendOptions{})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Could not delete the task of a container that has ended", "container", id)
	}
}

// exited tells whether an exit is in the record. That of a task that is gone without one
// is a guess, which the true one replaces.
func exited(v *engine.View) bool {
	_, ok, err := steps.ContainerExit.Get(v)
	return ok || err != nil
}

// recordExit journals how a container ended, unless that is known.
func (m *monitor) recordExit(ctx context.Context, id string, exit steps.Exit) error {
	return m.engine.Update(ctx, steps.Container, id, func(v *engine.View) ([]engine.Value, error) {
		if exited(v) {
			return nil, nil
		}
		return []engine.Value{steps.ContainerExit.With(exit)}, nil
	})
}

// await blocks until the container has ended. When the shim has gone the
// process is watched by itself, and the exit that the shim wrote is used.
func (m *monitor) await(ctx context.Context, id string) (steps.Exit, error) {
	v, ok := m.engine.Get(steps.Container, id)
	if !ok {
		return steps.Exit{}, engine.ErrNotFound
	}
	c := newContainer(v)
	task, _, err := steps.ContainerTask.Get(v)
	if err != nil {
		return unknownExit(task), err
	}
	tasks, err := m.runtime.Tasks(m.podOf(c))
	if err != nil {
		return unknownExit(task), err
	}
	ended, err := tasks.Wait(ctx, id)
	if err == nil {
		return exitOf(task, ended), nil
	}
	if werr := watchOrphan(ctx, id, task.PID); werr != nil {
		return unknownExit(task), errors.Join(err, werr)
	}
	seen := runtime.Exit{Code: unknownExitCode, At: time.Now(), Unknown: true}
	if m.isKilled(id) {
		seen, err = runtime.Exit{Code: killedExitCode, At: time.Now()}, nil
	}
	// As with an exit that the shim has seen, the next daemon tells the same, also if this one
	// dies before the exit is in the journal: it may have been told by then.
	seen, kerr := m.runtime.KeepExit(id, seen)
	return exitOf(task, seen), errors.Join(err, kerr)
}

func (m *monitor) isKilled(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.killed[id]
}

// killing marks a container as being taken down by force, until the function it
// gives is called.
func (m *monitor) killing(id string) (done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.killed[id] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.killed, id)
	}
}

// forceStop takes the task of a container down from outside and records the
// exit if nobody else could.
func (m *monitor) forceStop(ctx context.Context, id string) error {
	v, ok := m.engine.Get(steps.Container, id)
	if !ok {
		return nil
	}
	defer m.killing(id)()
	task, _, _ := steps.ContainerTask.Get(v) // a damaged slot is no reason not to kill
	if err := m.engine.Descend(ctx, steps.Container, steps.Stop, id, engine.DescendOptions{Interrupt: true}); err != nil {
		return fmt.Errorf("take down its task: %w", err)
	}
	if task.PID == 0 {
		return nil // it never ran
	}
	err := m.recordExit(ctx, id, killedExit(task))
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	return err
}

func (m *monitor) podOf(c container) runtime.Pod {
	view, _, _ := steps.ContainerPod.Get(c.View) // the zero value is refused by name in Tasks
	return runtime.Pod{
		ID: c.request.PodID, Handler: view.Pod.Handler,
		Address: view.Shim.Address, Streams: view.Shim.Streams,
	}
}

func runtimePod(p pod) runtime.Pod {
	shim, _, _ := steps.PodShim.Get(p.View) // the zero value is refused by name in Alive
	return runtime.Pod{ID: p.ID, Handler: p.request.Handler, Address: shim.Address, Streams: shim.Streams}
}

// exitOf names the reason as kubelet expects it.
func exitOf(task steps.Task, e runtime.Exit) steps.Exit {
	if e.Unknown {
		exit := unknownExit(task)
		exit.Finished = e.At
		return exit
	}
	exit := steps.Exit{Code: int32(e.Code), Reason: "Completed", Started: task.Started, Finished: e.At} //nolint:gosec // exit codes are 8 bits
	switch {
	case e.OOMKilled:
		exit.Reason = "OOMKilled"
	case e.Code != 0:
		exit.Reason = "Error"
	}
	return exit
}

// killedExit is that of a container taken down by force.
func killedExit(task steps.Task) steps.Exit {
	return exitOf(task, runtime.Exit{Code: killedExitCode, At: time.Now()})
}

// unknownExit is reported when a container is gone and nobody knows how it ended.
func unknownExit(task steps.Task) steps.Exit {
	return steps.Exit{
		Code: unknownExitCode, Reason: "Unknown", Started: task.Started, Finished: time.Now(),
		Message: "the container ended while nothing could watch it",
	}
}

const (
	unknownExitCode = 255
	killedExitCode  = 128 + 9 // as a shell tells of SIGKILL
)
