// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package task is the action that runs a container from its bundle.
package task

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs/ctrdir"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

func init() {
	steps.Register("task", func(s *steps.Services) engine.Action { return New(s.Config, s.Runtime) })
}

// Action is the action "task". Its resources are the container as the OCI
// runtime knows it, its cgroup, and what running it leaves in the bundle.
type Action struct {
	cfg     steps.Config
	runtime *runtime.Manager
}

var (
	_ engine.Action  = (*Action)(nil)
	_ engine.Needer  = (*Action)(nil)
	_ engine.Filler  = (*Action)(nil)
	_ engine.Sweeper = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config, m *runtime.Manager) *Action { return &Action{cfg: c, runtime: m} }

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key {
	return []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key(), steps.ContainerSpec.Key()}
}

// Fills is part of engine.Filler.
func (a *Action) Fills() engine.Key { return steps.ContainerTask.Key() }

// Do creates and starts the container.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.ContainerRequest.Need(r)
	if err != nil {
		return err
	}
	view, err := steps.ContainerPod.Need(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p := runtime.Pod{ID: view.ID, Handler: view.Pod.Handler, Address: view.Shim.Address, Streams: view.Shim.Streams}
	dir := a.cfg.ContainerDir(r.ID())
	if err := bundle.WritePod(dir, p); err != nil { // before anything is made that it helps to find
		return fmt.Errorf("start container %s: %w", r.ID(), err)
	}
	tasks, err := a.runtime.Tasks(p)
	if err != nil {
		return fmt.Errorf("start container %s: %w", r.ID(), err)
	}
	pid, err := a.run(ctx, tasks, a.createRequest(r.ID(), req, view))
	if err != nil {
		return err
	}
	return steps.ContainerTask.Set(r, steps.Task{PID: pid, Started: time.Now()})
}

// createRequest is what is asked of the runtime.
func (a *Action) createRequest(id string, req steps.Ctr, view steps.PodView) runtime.CreateRequest {
	c := req.Config.M
	create := runtime.CreateRequest{
		ID: id, Bundle: a.cfg.ContainerDir(id),
		LogPath: req.LogPath, LogDir: view.Pod.Config.M.GetLogDirectory(),
		Terminal: c.GetTty(), Stdin: c.GetStdin(), StdinOnce: c.GetStdinOnce(),
	}
	if req.Restored {
		create.Checkpoint = filepath.Join(a.cfg.DumpDir(id), "checkpoint")
	}
	return create
}

// run creates and starts the container and gives its init's PID.
func (a *Action) run(ctx context.Context, tasks runtime.Tasks, create runtime.CreateRequest) (int, error) {
	id := create.ID
	pid, err := tasks.Create(ctx, create)
	if err != nil {
		return 0, fmt.Errorf("create container %s: %w", id, err)
	}
	if err := tasks.Start(ctx, id); err != nil {
		return 0, fmt.Errorf("start container %s: %w", id, err)
	}
	if create.Checkpoint != "" {
		_ = os.RemoveAll(a.cfg.DumpDir(id)) // it has served; else it goes with the volumes
	}
	if pid != 0 {
		return pid, nil
	}
	state, err := tasks.State(ctx, id) // restored: its processes are there only now
	if err != nil {
		return 0, fmt.Errorf("find the process of container %s: %w", id, err)
	}
	return state.PID, nil
}

// Undo deletes the container, killing it if it runs.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.remove(ctx, r.ID()) }

func (a *Action) remove(ctx context.Context, id string) error {
	dir, err := ctrdir.Dir(a.cfg, id)
	if err != nil {
		return err
	}
	var p runtime.Pod
	if err := bundle.ReadPod(dir, &p); errdefs.IsNotFound(err) {
		return ctrdir.Release(a.cfg, id)
	} else if err != nil { // damaged: then what can be found without it is removed
		klog.FromContext(ctx).Error(err, "Read where the container runs", "container", id)
	}
	tasks, err := a.runtime.Tasks(p)
	if errdefs.IsNotFound(err) && p.Address != "" { // its handler was taken out of the configuration
		p.Handler = ""
		tasks, err = a.runtime.Tasks(p)
	}
	if err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	if _, err := tasks.Delete(ctx, id, dir); err != nil {
		return err
	}
	if err := bundle.Clean(dir); err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	return ctrdir.Release(a.cfg, id)
}

// Sweep deletes containers that no record knows.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	left, err := bundle.Pods(filepath.Dir(a.cfg.ContainerDir("x")))
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, dir := range left {
		id := filepath.Base(dir)
		if !s.Known(steps.Container, id) {
			s.Remove("container", id, func() error { return a.remove(ctx, id) })
		}
	}
	return nil
}
