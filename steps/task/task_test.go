// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	criruntime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
	"github.com/sandflow-cri/sandflow/steps/task"
)

func TestMain(m *testing.M) {
	code := m.Run()
	runtimetest.RemoveShim()
	runtimetest.RemoveCgroups()
	os.Exit(code)
}

type world struct {
	cfg  steps.Config
	rt   runtime.Config
	shim runtime.Shim
}

func newWorld(t *testing.T) world {
	runc := runtimetest.Root(t)
	state := runtimetest.State(t)
	w := world{
		cfg: steps.Config{State: state},
		rt:  runtime.Config{State: state, Shim: runtimetest.Shim(t), Handlers: map[string]runtime.Handler{"": {Type: runtime.OwnType, Binary: runc}}},
	}
	m := w.manager(t)
	dir := filepath.Join(w.cfg.PodDir("p"), "shim")
	t.Cleanup(func() {
		if err := m.Shutdown(context.Background(), "p", dir); err != nil {
			t.Error(err)
		}
	})
	var err error
	if w.shim, err = m.Launch(t.Context(), runtime.LaunchRequest{PodID: "p", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	// What the OCI runtime makes for the first container and keeps for all.
	if err := os.MkdirAll(filepath.Join(dir, "runc", "k8s.io"), 0o711); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w world) manager(t *testing.T) *runtime.Manager {
	m := runtime.NewManager(w.rt)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func (w world) action(t *testing.T) engine.Action { return task.New(w.cfg, w.manager(t)) }

func (w world) values(t *testing.T, id string, args ...string) []engine.Value {
	runtimetest.Bundle(t, w.cfg.ContainerDir(id), id, func(*specs.Spec) {}, args...)
	return []engine.Value{
		steps.ContainerRequest.With(steps.Ctr{PodID: "p", Config: steps.Proto[*criruntime.ContainerConfig]{M: &criruntime.ContainerConfig{}}}),
		steps.ContainerPod.With(steps.PodView{
			ID: "p", Pod: steps.Pod{Config: steps.Proto[*criruntime.PodSandboxConfig]{M: &criruntime.PodSandboxConfig{}}},
			Shim: steps.Shim{Address: w.shim.Address, Streams: w.shim.Streams},
		}),
		steps.ContainerSpec.With(steps.Spec{Bundle: w.cfg.ContainerDir(id)}),
	}
}

func TestSuite(t *testing.T) {
	w := newWorld(t)
	enginetest.Suite(t, enginetest.Subject{
		New: w.action, Workflow: steps.Container, Flow: steps.Start,
		Values: func(t *testing.T, id string) []engine.Value { return w.values(t, id, "sleep", "1000") },
		World:  func(t *testing.T, _ string) []string { return runtimetest.World(t, w.cfg.State) },
		Check: func(t *testing.T, r *engine.Run) {
			if s, err := steps.ContainerTask.Need(r); err != nil || unix.Kill(s.PID, 0) != nil || s.Started.IsZero() {
				t.Errorf("slot %+v, %v", s, err)
			}
		},
	})
}

func TestUndoWithTheShimDead(t *testing.T) {
	w := newWorld(t)
	a := w.action(t)
	values := w.values(t, "orphan", "sleep", "1000")
	r, err := engine.NewRun(a, steps.Container, steps.Start, "orphan", values...)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(w.shim.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		free, err := engine.NewRun(nil, steps.Container, steps.Stop, "orphan")
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Undo(context.Background(), free); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range runtimetest.World(t, w.cfg.State) {
		if line == "file containers/orphan/pod" || filepath.Base(line) == "orphan" && line != "file containers/orphan" {
			t.Errorf("left: %s", line)
		}
	}
}
