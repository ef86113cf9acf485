// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	criruntime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
	"github.com/sandflow-cri/sandflow/steps/shim"
)

func TestMain(m *testing.M) {
	code := m.Run()
	runtimetest.RemoveShim()
	runtimetest.RemoveCgroups()
	os.Exit(code)
}

func request(pid criruntime.NamespaceMode, handler string) steps.Pod {
	return steps.Pod{Handler: handler, Config: steps.Proto[*criruntime.PodSandboxConfig]{M: &criruntime.PodSandboxConfig{
		Linux: &criruntime.LinuxPodSandboxConfig{
			CgroupParent:    runtimetest.CgroupParent,
			SecurityContext: &criruntime.LinuxSandboxSecurityContext{NamespaceOptions: &criruntime.NamespaceOption{Pid: pid}},
		},
	}}}
}

type world struct {
	cfg steps.Config
	rt  runtime.Config
}

func newWorld(t *testing.T) world {
	runc := runtimetest.Root(t)
	state := runtimetest.State(t)
	w := world{
		cfg: steps.Config{State: state, Shim: runtimetest.Shim(t), Runtimes: map[string]steps.Runtime{
			"":     {Type: runtime.OwnType, Sandbox: "shim"},
			"kata": {Type: "io.containerd.kata.v2", Sandbox: "container"},
		}},
		rt: runtime.Config{State: state, Shim: runtimetest.Shim(t), Handlers: map[string]runtime.Handler{"": {Type: runtime.OwnType, Binary: runc}}},
	}
	for _, d := range []string{filepath.Dir(w.cfg.PodDir("x")), filepath.Join(state, "tmp")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w world) action(t *testing.T) engine.Action {
	m := runtime.NewManager(w.rt)
	t.Cleanup(func() { _ = m.Close() })
	return shim.New(w.cfg, m)
}

func TestSuite(t *testing.T) {
	for name, mode := range map[string]criruntime.NamespaceMode{
		"own PID namespaces": criruntime.NamespaceMode_CONTAINER,
		"one PID namespace":  criruntime.NamespaceMode_POD,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			enginetest.Suite(t, enginetest.Subject{
				New: w.action, Workflow: steps.Sandbox, Flow: steps.Create,
				Values: func(*testing.T, string) []engine.Value {
					return []engine.Value{steps.PodRequest.With(request(mode, "")), steps.PodNamespaces.With(steps.Namespaces{})}
				},
				World: func(t *testing.T, _ string) []string { return runtimetest.World(t, w.cfg.State) },
				Check: func(t *testing.T, r *engine.Run) {
					s, err := steps.PodShim.Need(r)
					if err != nil || s.PID == 0 || (s.PIDNamespace != "") != (mode == criruntime.NamespaceMode_POD) {
						t.Errorf("slot %+v, %v", s, err)
					}
					for _, path := range []string{s.Address, s.Streams} { // case 94
						if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
							t.Errorf("socket %s: %v, %v", path, st, err)
						}
					}
				},
			})
		})
	}
}

func TestUndoOfAStoppedShim(t *testing.T) {
	w := newWorld(t)
	a := w.action(t)
	before := runtimetest.World(t, w.cfg.State)
	r, err := engine.NewRun(a, steps.Sandbox, steps.Create, "stopped",
		steps.PodRequest.With(request(criruntime.NamespaceMode_POD, "")), steps.PodNamespaces.With(steps.Namespaces{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	free, err := engine.NewRun(nil, steps.Sandbox, steps.Destroy, "stopped", r.Values()...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := steps.PodShim.Need(free)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(s.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := a.Undo(context.Background(), free); err != nil {
		t.Fatal(err)
	}
	if after := runtimetest.World(t, w.cfg.State); len(after) != len(before) {
		t.Errorf("left: %v", after)
	}
}

func TestApplies(t *testing.T) {
	a := shim.New(steps.Config{Runtimes: map[string]steps.Runtime{
		"own": {Type: runtime.OwnType, Sandbox: "shim"}, "vm": {Type: "io.containerd.kata.v2"}, "box": {Type: runtime.OwnType, Sandbox: "container"},
	}}, nil)
	for handler, want := range map[string]bool{"own": true, "vm": false, "box": false, "unknown": true} {
		r, err := engine.NewRun(a, steps.Sandbox, steps.Create, "x", steps.PodRequest.With(request(0, handler)))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Applies(r); got != want {
			t.Errorf("handler %s: applies %t, want %t", handler, got, want)
		}
	}
}
