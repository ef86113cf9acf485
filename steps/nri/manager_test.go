// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
)

func TestHooksInOrderEachOnce(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	p := join(t, c, "10", &plugin{})
	ctx := t.Context()
	steps := []func(){
		func() { fatal(t, m.RunPod(ctx, "p")) },
		func() { fatal(t, m.UpdatePod(ctx, "p", nil, &api.LinuxResources{})) },
		func() { m.UpdatedPod(ctx, "p") },
		func() { _, err := m.CreateContainer(ctx, "c", "p"); fatal(t, err) },
		func() { m.CreatedContainer(ctx, "c") },
		func() { fatal(t, m.StartContainer(ctx, "c")) },
		func() { m.StartedContainer(ctx, "c") },
		func() { _, err := m.UpdateContainer(ctx, "c", &api.LinuxResources{}); fatal(t, err) },
		func() { m.UpdatedContainer(ctx, "c") },
		func() { m.StopPod(ctx, "p") }, // tells the container's stop first
		func() { m.StopContainer(ctx, "c") },
		func() { m.StopPod(ctx, "p") },
		func() { m.RemovePod(ctx, "p") }, // and its removal
		func() { m.RemoveContainer(ctx, "c") },
		func() { m.RemovePod(ctx, "p") },
	}
	for _, step := range steps {
		step()
	}
	want(t, p.told(), "RunPodSandbox p", "UpdatePodSandbox p", "PostUpdatePodSandbox p",
		"CreateContainer c", "PostCreateContainer c", "StartContainer c", "PostStartContainer c",
		"UpdateContainer c", "PostUpdateContainer c",
		"StopContainer c", "StopPodSandbox p", "RemoveContainer c", "RemovePodSandbox p")
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRefusedPodIsUndoneWhereItWasTold(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	refuse := true
	first := join(t, c, "10", &plugin{name: "first"})
	second := join(t, c, "20", &plugin{name: "second", onRun: func(context.Context) error {
		if refuse {
			return errors.New("no room here")
		}
		return nil
	}})
	ctx := t.Context()
	err := m.RunPod(ctx, "p")
	if err == nil || !strings.Contains(err.Error(), "no room here") || !strings.Contains(err.Error(), "sandbox p") {
		t.Fatalf("refused pod: %v", err)
	}
	m.StopPod(ctx, "p")
	m.RemovePod(ctx, "p")
	refuse = false
	fatal(t, m.RunPod(ctx, "p"))
	for _, p := range []*plugin{first, second} {
		want(t, p.told(), "RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p", "RunPodSandbox p")
	}
}

func TestAdjustmentsOfTwoPlugins(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	variable := "B"
	adjusting := func(key string) func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		return func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			a := &api.ContainerAdjustment{}
			name := key
			if name == "" {
				name = variable
			}
			a.AddEnv(name, "by "+key)
			return a, []*api.ContainerUpdate{shares("other"+key, 7)}, nil
		}
	}
	join(t, c, "10", &plugin{name: "first", onCreate: adjusting("A")})
	join(t, c, "20", &plugin{name: "second", onCreate: adjusting("")})
	fatal(t, m.RunPod(t.Context(), "p"))
	a, err := m.CreateContainer(t.Context(), "c", "p")
	if err != nil || len(a.GetEnv()) != 2 {
		t.Fatalf("adjustment %v: %v", a, err)
	}
	if got := n.did(&n.updated); !slices.Equal(got, []string{"otherA 7", "other 7"}) {
		t.Errorf("updates of others: %q", got)
	}
	variable = "A"
	_, err = m.CreateContainer(t.Context(), "d", "p")
	if err == nil {
		t.Fatal("two plugins set the same variable, and nobody says so")
	}
	for _, word := range []string{"10-first", "20-second", "both tried to set Env A", "container d"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func TestValidatorRefuses(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	join(t, c, "10", &plugin{name: "adjuster", onCreate: func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		a := &api.ContainerAdjustment{}
		a.AddEnv("A", "1")
		return a, nil, nil
	}})
	join(t, c, "90", &plugin{name: "guard", validate: func(r *api.ValidateContainerAdjustmentRequest) error {
		if len(r.GetAdjust().GetEnv()) > 0 {
			return errors.New("hands off the environment")
		}
		return nil
	}})
	if _, err := m.CreateContainer(t.Context(), "c", "p"); err == nil || !strings.Contains(err.Error(), "hands off") {
		t.Errorf("a refused adjustment: %v", err)
	}
}

func TestUpdatesOwnAndOthers(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	join(t, c, "10", &plugin{
		onUpdate: func(r *api.LinuxResources) []*api.ContainerUpdate {
			return []*api.ContainerUpdate{shares("c", r.GetCpu().GetShares().GetValue()*2), shares("other", 3)}
		},
		onStop: func() []*api.ContainerUpdate { return []*api.ContainerUpdate{shares("other", 4)} },
	})
	ctx := t.Context()
	if _, err := m.CreateContainer(ctx, "c", "p"); err != nil {
		t.Fatal(err)
	}
	fatal(t, m.StartContainer(ctx, "c"))
	own, err := m.UpdateContainer(ctx, "c", &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(100)}})
	if err != nil || own.GetCpu().GetShares().GetValue() != 200 {
		t.Errorf("own limits %v: %v", own, err)
	}
	m.StopContainer(ctx, "c")
	if got := n.did(&n.updated); !slices.Equal(got, []string{"other 3", "other 4"}) {
		t.Errorf("updates of others: %q", got)
	}
}

func TestUpdatesOutOfTurnAndEvictions(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	p := join(t, c, "10", &plugin{})
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{shares("c", 5)})
	if err != nil || len(failed) > 0 {
		t.Errorf("update out of turn: %v, %v", failed, err)
	}
	n.mu.Lock()
	n.refuse = errdefs.ErrNotFound
	n.mu.Unlock()
	ignored := shares("d", 6)
	ignored.SetIgnoreFailure()
	failed, err = p.stub.UpdateContainers([]*api.ContainerUpdate{shares("gone", 5), ignored})
	if err != nil || len(failed) != 1 || failed[0].GetContainerId() != "gone" {
		t.Errorf("update of what is gone: %v, %v", failed, err)
	}
	// The stub has no words for evictions: speak the protocol.
	evict(t, c, "x", "too loud")
	eventually(t, "the eviction", func() bool { return slices.Contains(n.did(&n.evicted), "x too loud") })
	// A move needs no update of what has ended.
	p.onCreate = func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		return nil, []*api.ContainerUpdate{shares("gone", 1)}, nil
	}
	if _, err := m.CreateContainer(t.Context(), "c", "p"); err != nil {
		t.Errorf("an update of what is gone fails a create: %v", err)
	}
	n.mu.Lock()
	n.refuse = errdefs.ErrUnavailable
	n.mu.Unlock()
	if _, err := m.CreateContainer(t.Context(), "c2", "p"); err == nil || !strings.Contains(err.Error(), "update container gone") {
		t.Errorf("an update that fails: %v", err)
	}
}
