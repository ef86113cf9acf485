// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package task is the action that runs a container from its bundle.
package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// podFile in the bundle says where the container runs, so that it can be found
// with nothing but its ID. It is written before anything else is made and
// removed after everything else.
const podFile = "pod"

// leftovers are what the runtime and its shim write into the bundle. How the
// container ended stays there with config.json and rootfs, for their owner to remove.
var leftovers = []string{"log.json", "init.pid", "runtime", "options.json", "work", podFile}

func init() {
	registry.Register(&plugin.Registration{
		Type:     steps.ActionPlugin,
		ID:       "task",
		Requires: []plugin.Type{steps.ServicesPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			s, err := steps.ServicesOf(ic)
			if err != nil {
				return nil, err
			}
			return New(s.Config, s.Runtime), nil
		},
	})
}

// Action is the action "task". Its resources are the container as the OCI
// runtime knows it, its cgroup, and the leftovers in the bundle.
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
	bundle := a.cfg.ContainerDir(r.ID())
	if err := writePod(bundle, p); err != nil {
		return fmt.Errorf("start container %s: %w", r.ID(), err)
	}
	tasks, err := a.runtime.Tasks(p)
	if err != nil {
		return fmt.Errorf("start container %s: %w", r.ID(), err)
	}
	c := req.Config.M
	pid, err := tasks.Create(ctx, runtime.CreateRequest{
		ID: r.ID(), Bundle: bundle, LogPath: req.LogPath,
		Terminal: c.GetTty(), Stdin: c.GetStdin(), StdinOnce: c.GetStdinOnce(),
	})
	if err != nil {
		return fmt.Errorf("create container %s: %w", r.ID(), err)
	}
	if err := tasks.Start(ctx, r.ID()); err != nil {
		return fmt.Errorf("start container %s: %w", r.ID(), err)
	}
	return steps.ContainerTask.Set(r, steps.Task{PID: pid, Started: time.Now()})
}

// Undo deletes the container, killing it if it runs.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.remove(ctx, r.ID()) }

func (a *Action) remove(ctx context.Context, id string) error {
	bundle := a.cfg.ContainerDir(id)
	p, err := readPod(bundle)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	tasks, err := a.runtime.Tasks(p)
	if errdefs.IsNotFound(err) && p.Address != "" { // its handler was taken out of the configuration
		p.Handler = ""
		tasks, err = a.runtime.Tasks(p)
	}
	if err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	if _, err := tasks.Delete(ctx, id, bundle); err != nil {
		return err
	}
	for _, name := range leftovers {
		if err := os.RemoveAll(filepath.Join(bundle, name)); err != nil {
			return fmt.Errorf("delete container %s: %w", id, err)
		}
	}
	return nil
}

// Sweep deletes containers that no record knows.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	left, err := filepath.Glob(filepath.Join(a.cfg.ContainerDir("*"), podFile))
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, path := range left {
		id := filepath.Base(filepath.Dir(path))
		if !s.Known(steps.Container, id) {
			s.Remove("container", id, func() error { return a.remove(ctx, id) })
		}
	}
	return nil
}

func writePod(bundle string, p runtime.Pod) (err error) {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := atomicfile.New(filepath.Join(bundle, podFile), 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Cancel())
	}
	return f.Close()
}

// readPod gives what writePod wrote. A damaged file names no pod: then only what
// can be found by the container's ID is removed.
func readPod(bundle string) (runtime.Pod, error) {
	var p runtime.Pod
	b, err := os.ReadFile(filepath.Join(bundle, podFile))
	if err != nil {
		return p, err
	}
	if json.Unmarshal(b, &p) != nil {
		return runtime.Pod{}, nil
	}
	return p, nil
}
