// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sandboxcontainer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	criruntime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
	"github.com/sandflow-cri/sandflow/steps/sandboxcontainer"
)

func TestMain(m *testing.M) {
	code := m.Run()
	runtimetest.RemoveCgroups()
	os.Exit(code)
}

// store has one image, whose file system is the host's.
type store struct{ user string }

func (s store) Image(context.Context, string) (snapshot.Image, error) {
	img := snapshot.Image{ID: "sha256:1"}
	img.Spec.Config.Entrypoint, img.Spec.Config.Cmd = []string{"/bin/sleep"}, []string{"1000"}
	img.Spec.Config.User = s.user
	return img, nil
}

func (store) Pull(context.Context, string, *snapshot.Auth, snapshot.PullOptions) (snapshot.Image, error) {
	return snapshot.Image{}, errors.New("nothing to pull")
}

func (store) PrepareRootfs(ctx context.Context, _ string, _ snapshot.RootfsOptions) ([]mount.Mount, error) {
	return []mount.Mount{{Type: "bind", Source: "/", Options: []string{"bind", "ro"}}}, ctx.Err()
}

func (store) RemoveRootfs(context.Context, string) error { return nil }

func request(handler string) steps.Pod {
	return steps.Pod{Handler: handler, Config: steps.Proto[*criruntime.PodSandboxConfig]{M: &criruntime.PodSandboxConfig{
		Metadata: &criruntime.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"},
		Linux:    &criruntime.LinuxPodSandboxConfig{CgroupParent: runtimetest.CgroupParent},
	}}}
}

func TestSuite(t *testing.T) {
	runc := runtimetest.Root(t)
	address, shim := runtimetest.Containerd(t)
	client, err := containerd.New(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	state := runtimetest.State(t)
	cfg := steps.Config{State: state, SandboxImage: "pause", Runtimes: map[string]steps.Runtime{"box": {Type: shim, Sandbox: "container"}}}
	rt := runtime.Config{
		State: state, Client: func() *containerd.Client { return client },
		Handlers: map[string]runtime.Handler{"box": {Type: shim, Binary: runc}},
	}
	for _, d := range []string{"pods", "runc/k8s.io"} {
		if err := os.MkdirAll(filepath.Join(state, d), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	containers := func(t *testing.T) (out []string) {
		cs, err := client.Containers(namespaces.WithNamespace(t.Context(), "k8s.io"))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cs {
			out = append(out, "container "+c.ID())
		}
		return out
	}
	var last *runtime.Manager
	enginetest.Suite(t, enginetest.Subject{
		New: func(t *testing.T) engine.Action {
			if last != nil { // a crash ends what the last daemon had under way
				_ = last.Close()
			}
			m := runtime.NewManager(rt)
			last = m
			t.Cleanup(func() { _ = m.Close() })
			return sandboxcontainer.New(cfg, store{}, m)
		},
		Workflow: steps.Sandbox, Flow: steps.Create,
		Values: func(*testing.T, string) []engine.Value {
			return []engine.Value{steps.PodRequest.With(request("box")), steps.PodNamespaces.With(steps.Namespaces{})}
		},
		World: func(t *testing.T, id string) []string {
			return append(runtimetest.World(t, state), containers(t)...)
		},
		Check:       func(t *testing.T, r *engine.Run) { checkRunning(t, rt, r.ID()) },
		CancelAfter: []time.Duration{0, time.Millisecond, 50 * time.Millisecond},
	})
}

func checkRunning(t *testing.T, rt runtime.Config, id string) {
	t.Helper()
	m := runtime.NewManager(rt)
	defer func() { _ = m.Close() }()
	p := runtime.Pod{ID: id, Handler: "box"}
	tasks, err := m.Tasks(p)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := tasks.State(t.Context(), id); err != nil || s.Status != runtime.StatusRunning {
		t.Errorf("state %+v, %v", s, err)
	}
	gone, err := m.Alive(p)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
		t.Error("a running sandbox container is gone")
	default:
	}
}

func TestNoSandboxImage(t *testing.T) {
	a := sandboxcontainer.New(steps.Config{Runtimes: map[string]steps.Runtime{"box": {Sandbox: "container"}}}, store{}, nil)
	r, err := engine.NewRun(a, steps.Sandbox, steps.Create, "x", steps.PodRequest.With(request("box")), steps.PodNamespaces.With(steps.Namespaces{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "sandbox image") {
		t.Errorf("do: %v", err)
	}
	if !a.Applies(r) {
		t.Error("does not apply to a handler with a sandbox container")
	}
}
