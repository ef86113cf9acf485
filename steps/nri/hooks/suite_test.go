// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/nri/hooks"
)

// outside is the runtime around an action that runs alone.
type outside struct{ existing nri.Existing }

func (o *outside) Existing() nri.Existing                           { return o.existing }
func (*outside) Pod(id string) *api.PodSandbox                      { return &api.PodSandbox{Id: id} }
func (*outside) Container(id string) *api.Container                 { return &api.Container{Id: id, PodSandboxId: "p"} }
func (*outside) Update(context.Context, *api.ContainerUpdate) error { return nil }
func (*outside) Evict(_ context.Context, _, _ string) error         { return nil }

// subject is an action in its flow. prefix is that of what it makes the plugin
// believe.
type subject struct {
	workflow, flow, prefix string
	action                 func(*nri.Manager) engine.Action
	values                 func(t *testing.T, id string, m *nri.Manager, o *outside) []engine.Value
}

// suite runs an action through the engine's suite: a new daemon has new plugins,
// and the world is what they believe.
func suite(t *testing.T, s subject) {
	var m *nri.Manager
	var p *plugin
	around := &outside{}
	enginetest.Suite(t, enginetest.Subject{
		Workflow: s.workflow, Flow: s.flow,
		New: func(t *testing.T) engine.Action {
			c := config(t)
			m = nri.New(c)
			p = start(t, c, m, around)
			return s.action(m)
		},
		Values: func(t *testing.T, id string) []engine.Value {
			if s.values == nil {
				return nil
			}
			return s.values(t, id, m, around)
		},
		World: func(*testing.T, string) []string {
			return slices.DeleteFunc(p.world(), func(what string) bool { return !strings.HasPrefix(what, s.prefix) })
		},
	})
}

func TestPodSuite(t *testing.T) {
	suite(t, subject{
		workflow: steps.Sandbox, flow: steps.Create, prefix: "pod",
		action: func(m *nri.Manager) engine.Action { return hooks.NewPod(m) },
	})
}

func TestContainerSuite(t *testing.T) {
	suite(t, subject{
		workflow: steps.Container, flow: steps.Create, prefix: "container",
		action: func(m *nri.Manager) engine.Action { return hooks.NewContainer(m, steps.Config{}) },
		values: func(t *testing.T, _ string, _ *nri.Manager, _ *outside) []engine.Value {
			dir := t.TempDir()
			bundle(t, dir)
			return []engine.Value{
				steps.ContainerRequest.With(steps.Ctr{PodID: "p"}), steps.ContainerSpec.With(steps.Spec{Bundle: dir, CgroupPath: "/old"}),
			}
		},
	})
}

func TestStartSuite(t *testing.T) {
	suite(t, subject{
		workflow: steps.Container, flow: steps.Start, prefix: "process",
		action: func(m *nri.Manager) engine.Action { return hooks.NewStart(m) },
		values: func(t *testing.T, id string, m *nri.Manager, o *outside) []engine.Value {
			// Created before, and by a daemon before as well.
			o.existing.Containers = append(o.existing.Containers, nri.ExistingContainer{ID: id, Pod: "p"})
			if _, err := m.CreateContainer(t.Context(), id, "p"); err != nil {
				t.Fatal(err)
			}
			return nil
		},
	})
}
