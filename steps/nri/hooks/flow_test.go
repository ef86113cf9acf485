// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks_test

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/nri/hooks"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// stage is an action that only stands for a real one.
type stage struct {
	t    *testing.T
	cfg  steps.Config
	fail bool
}

func (s *stage) Do(context.Context, *engine.Run) error {
	if s.fail {
		return errors.New("induced")
	}
	return nil
}
func (s *stage) Undo(context.Context, *engine.Run) error { return nil }

// writer is the action spec, as far as it matters here.
type writer struct{ stage }

func (w *writer) Fills() engine.Key { return steps.ContainerSpec.Key() }

func (w *writer) Do(_ context.Context, r *engine.Run) error {
	dir := w.cfg.ContainerDir(r.ID())
	bundle(w.t, dir)
	return steps.ContainerSpec.Set(r, steps.Spec{Bundle: dir, CgroupPath: "/old"})
}

// lab is an engine with the NRI actions and a plugin.
type lab struct {
	*engine.Engine

	cfg    steps.Config
	plugin *plugin
	task   *stage
}

type runtimeOf struct {
	hooks.Objects

	*outside
}

func (r runtimeOf) Existing() nri.Existing             { return r.Objects.Existing() }
func (r runtimeOf) Pod(id string) *api.PodSandbox      { return r.Objects.Pod(id) }
func (r runtimeOf) Container(id string) *api.Container { return r.Objects.Container(id) }

func newLab(t *testing.T) *lab {
	t.Helper()
	c := config(t)
	m := nri.New(c)
	l := &lab{cfg: steps.Config{State: t.TempDir(), DefaultCgroupParent: "/sandflow"}, task: &stage{}}
	actions := map[string]engine.Action{
		"nri-pod": hooks.NewPod(m), "nri-container": hooks.NewContainer(m, l.cfg), "nri-start": hooks.NewStart(m),
		"spec": &writer{stage{t: t, cfg: l.cfg}}, "task": l.task,
	}
	journal, err := engine.OpenBolt(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	observer := hooks.NewObserver(m, func(workflow, id string) (*engine.View, bool) { return l.Get(workflow, id) })
	l.Engine, err = engine.New(engine.Options{
		Journal: journal, Observers: []engine.Observer{observer},
		Lookup: func(name string) (engine.Action, bool) { a, ok := actions[name]; return a, ok },
	}, definitions(), map[string]map[string]engine.FlowConfig{
		steps.Sandbox: {steps.Create: {Failover: true, Steps: [][]string{{"nri-pod"}}}},
		steps.Container: {
			steps.Create: {Failover: true, Steps: [][]string{{"spec"}, {"nri-container"}}},
			steps.Start:  {Failover: true, Steps: [][]string{{"nri-start"}, {"task"}}},
		},
	})
	if err == nil {
		err = l.Boot(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	l.plugin = start(t, c, m, runtimeOf{Objects: hooks.Objects{Engine: l.Engine, Config: l.cfg}, outside: &outside{}})
	return l
}

func definitions() []engine.Definition {
	return []engine.Definition{{
		Name: steps.Sandbox, Given: []engine.Key{steps.PodRequest.Key()},
		Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Ready}},
		Down: []engine.FlowDef{{Name: steps.Destroy, To: steps.Reserved}, {Name: steps.Cleanup, To: steps.Ground}},
	}, {
		Name: steps.Container, Given: []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key()},
		Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Created}, {Name: steps.Start, To: steps.Running}},
		Down: []engine.FlowDef{{Name: steps.Stop, To: steps.Created}, {Name: steps.Remove, To: steps.Ground}},
	}}
}

func (l *lab) run(t *testing.T, id string) error {
	t.Helper()
	c := &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u"}}
	return l.Climb(t.Context(), steps.Sandbox, steps.Create, id, engine.ClimbOptions{Name: "web", Values: []engine.Value{
		steps.PodRequest.With(steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: c}}),
	}})
}

func (l *lab) create(t *testing.T, id string) error {
	t.Helper()
	c := &runtime.ContainerConfig{Metadata: &runtime.ContainerMetadata{Name: "app"}, Labels: map[string]string{"a": "b"}}
	return l.Climb(t.Context(), steps.Container, steps.Create, id, engine.ClimbOptions{Name: "app", Values: []engine.Value{
		steps.ContainerRequest.With(steps.Ctr{PodID: "p", Config: steps.Proto[*runtime.ContainerConfig]{M: c}, Created: time.Now()}),
		steps.ContainerPod.With(steps.PodView{ID: "p"}),
	}})
}

func (l *lab) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) told(t *testing.T, events ...string) {
	t.Helper()
	if got := l.plugin.told(); !slices.Equal(got, events) {
		t.Errorf("told\n  %q\nwant\n  %q", got, events)
	}
}

func TestWholeLife(t *testing.T) {
	l := newLab(t)
	ctx := t.Context()
	l.must(t, l.run(t, "p"))
	l.must(t, l.create(t, "c"))
	l.must(t, l.Climb(ctx, steps.Container, steps.Start, "c", engine.ClimbOptions{}))
	l.must(t, l.Descend(ctx, steps.Container, steps.Stop, "c", engine.DescendOptions{}))
	l.must(t, l.Descend(ctx, steps.Container, steps.Stop, "c", engine.DescendOptions{}))
	l.must(t, l.Descend(ctx, steps.Sandbox, steps.Destroy, "p", engine.DescendOptions{}))
	l.must(t, l.Descend(ctx, steps.Sandbox, steps.Destroy, "p", engine.DescendOptions{}))
	l.must(t, l.Descend(ctx, steps.Container, steps.Remove, "c", engine.DescendOptions{}))
	l.must(t, l.Descend(ctx, steps.Sandbox, steps.Cleanup, "p", engine.DescendOptions{}))
	l.told(t, "RunPodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer",
		"StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")
}

func TestRefusalIsRolledBackAndMayBeTriedAgain(t *testing.T) {
	l := newLab(t)
	refusing := func(event string, move func() error) {
		t.Helper()
		l.plugin.refuse = event
		if err := move(); err == nil || !strings.Contains(err.Error(), "refused "+event) {
			t.Fatalf("%s refused: %v", event, err)
		}
		l.plugin.refuse = ""
	}
	refusing("RunPodSandbox", func() error { return l.run(t, "x") })
	if pods := l.List(steps.Sandbox); len(pods) > 0 {
		t.Errorf("left of a refused pod: %v", pods[0])
	}
	l.must(t, l.run(t, "p"))
	refusing("CreateContainer", func() error { return l.create(t, "y") })
	l.must(t, l.create(t, "c"))
	refusing("StartContainer", func() error { return l.Climb(t.Context(), steps.Container, steps.Start, "c", engine.ClimbOptions{}) })
	l.told(t, "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "RunPodSandbox",
		"CreateContainer", "RemoveContainer", "CreateContainer", "PostCreateContainer", "StartContainer", "StopContainer")
}

// The plugin does not fail, what comes after it does.
func TestFailureElsewhereIsToldOnce(t *testing.T) {
	l := newLab(t)
	l.must(t, l.run(t, "p"))
	l.must(t, l.create(t, "c"))
	l.task.fail = true
	if err := l.Climb(t.Context(), steps.Container, steps.Start, "c", engine.ClimbOptions{}); err == nil {
		t.Fatal("the task fails, and the start does not")
	}
	l.must(t, l.Descend(t.Context(), steps.Container, steps.Remove, "c", engine.DescendOptions{}))
	l.told(t, "RunPodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer", "StopContainer", "RemoveContainer")
}

func TestAdjustmentReachesTheBundle(t *testing.T) {
	l := newLab(t)
	l.plugin.adjust = wishes()
	l.must(t, l.run(t, "p"))
	l.must(t, l.create(t, "c"))
	s, err := spec.ReadBundle(l.cfg.ContainerDir("c"))
	l.must(t, err)
	checkWishes(t, s)
	v, _ := l.Get(steps.Container, "c")
	if path, err := steps.CgroupPath(v); err != nil || path != "/new" {
		t.Errorf("the cgroup is said to be %q, %v", path, err)
	}
}

func wishes() *api.ContainerAdjustment {
	a := &api.ContainerAdjustment{}
	a.AddEnv("ADDED", "yes")
	a.RemoveEnv("GONE")
	a.AddMount(&api.Mount{Source: "/etc", Destination: "/added", Type: "bind", Options: []string{"ro"}})
	a.RemoveMount("/gone")
	a.RemoveAnnotation("note")
	a.AddAnnotation("note", "by a plugin")
	a.RemoveAnnotation("gone")
	a.RemoveDevice("/dev/gone")
	a.RemoveNamespace(&api.LinuxNamespace{Type: "uts"})
	a.Linux.Sysctl = map[string]string{api.MarkForRemoval("gone"): ""}
	a.SetArgs([]string{"ash"})
	a.AddRlimit("RLIMIT_NOFILE", 20, 10)
	a.AddDevice(&api.LinuxDevice{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229})
	a.SetLinuxCPUShares(512)
	a.SetLinuxMemoryLimit(64 << 20)
	a.SetLinuxPidLimits(99)
	a.SetLinuxCgroupsPath("/new")
	a.SetLinuxOomScoreAdj(new(500))
	a.AddHooks(&api.Hooks{CreateRuntime: []*api.Hook{{Path: "/bin/true"}}})
	a.AddOrReplaceNamespace(&api.LinuxNamespace{Type: "ipc", Path: "/proc/1/ns/ipc"})
	a.SetLinuxSysctl("net.core.somaxconn", "7")
	return a
}

func checkWishes(t *testing.T, s *specs.Spec) {
	t.Helper()
	has := func(what string, ok bool) {
		t.Helper()
		if !ok {
			t.Errorf("the spec is without what the plugin wants: %s", what)
		}
	}
	has("env "+strings.Join(s.Process.Env, " "), slices.Equal(s.Process.Env, []string{"PATH=/bin", "ADDED=yes"}))
	has("mounts", len(s.Mounts) == 1 && s.Mounts[0].Destination == "/added")
	has("annotations", maps.Equal(s.Annotations, map[string]string{"note": "by a plugin"}))
	has("args", slices.Equal(s.Process.Args, []string{"ash"}))
	has("rlimit", slices.Contains(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: 20, Soft: 10}))
	has("device", len(s.Linux.Devices) == 1 && s.Linux.Devices[0].Path == "/dev/fuse")
	r := s.Linux.Resources
	has("device rule", len(r.Devices) == 1 && r.Devices[0].Allow)
	has("cpu shares", r.CPU != nil && r.CPU.Shares != nil && *r.CPU.Shares == 512)
	has("memory", r.Memory != nil && r.Memory.Limit != nil && *r.Memory.Limit == 64<<20)
	has("pids", r.Pids != nil && r.Pids.Limit != nil && *r.Pids.Limit == 99)
	has("cgroup", s.Linux.CgroupsPath == "/new")
	has("oom_score_adj", s.Process.OOMScoreAdj != nil && *s.Process.OOMScoreAdj == 500)
	has("hook", s.Hooks != nil && len(s.Hooks.CreateRuntime) == 1)
	has("namespace", slices.Contains(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.IPCNamespace, Path: "/proc/1/ns/ipc"}))
	has("no uts namespace", len(s.Linux.Namespaces) == 2)
	has("sysctl", maps.Equal(s.Linux.Sysctl, map[string]string{"net.core.somaxconn": "7"}))
}

func TestObjects(t *testing.T) {
	l := newLab(t)
	l.must(t, l.run(t, "p"))
	l.must(t, l.create(t, "c"))
	o := hooks.Objects{Engine: l.Engine, Config: l.cfg}
	p, c := o.Pod("p"), o.Container("c")
	if p.GetName() != "web" || p.GetNamespace() != "shop" || p.GetUid() != "u" || p.GetLinux().GetCgroupParent() != "/sandflow" {
		t.Errorf("pod %v", p)
	}
	if c.GetName() != "app" || c.GetPodSandboxId() != "p" || c.GetState() != api.ContainerState_CONTAINER_CREATED ||
		c.GetLabels()["a"] != "b" || !slices.Equal(c.GetArgs(), []string{"sh"}) || len(c.GetMounts()) != 1 {
		t.Errorf("container %v", c)
	}
	if o.Pod("x") != nil || o.Container("x") != nil {
		t.Error("what is not there is shown")
	}
	e := o.Existing()
	if len(e.Pods) != 1 || e.Pods[0] != (nri.ExistingPod{ID: "p"}) ||
		len(e.Containers) != 1 || e.Containers[0] != (nri.ExistingContainer{ID: "c", Pod: "p"}) {
		t.Errorf("existing %+v", e)
	}
}
