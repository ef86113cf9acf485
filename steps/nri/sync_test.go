// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandflow-cri/sandflow/steps/nri"
)

// Containers come and go while plugins join. Each plugin is told of each
// container in exactly one way, and of its end exactly if it was told of it.
func TestNoContainerIsLostOrToldTwice(t *testing.T) {
	const makers, lives, joiners = 4, 60, 12
	c, n := config(t), &node{}
	m := start(t, c, n)
	early := join(t, c, "00", &plugin{name: "early"})
	fatal(t, m.RunPod(t.Context(), "p"))
	var making sync.WaitGroup
	for maker := range makers {
		making.Go(func() {
			for life := range lives {
				live(t, m, fmt.Sprintf("%d-%d", maker, life), life%2 == 0)
			}
		})
	}
	var late []*plugin
	for i := range joiners {
		late = append(late, join(t, c, "10", &plugin{name: fmt.Sprint("late", i)}))
	}
	making.Wait()
	after := join(t, c, "20", &plugin{name: "after"})
	complete(t, early, makers*lives)
	for _, p := range late {
		complete(t, p, 0)
	}
	// What stands now is what one who joins now has seen.
	standing := slices.Sorted(slices.Values(after.synced))
	for _, p := range append(late, early) {
		if got := p.living(); !slices.Equal(got, standing) {
			t.Errorf("%s believes that there are %d objects, there are %d", p.name, len(got), len(standing))
		}
	}
}

// live makes a container, and takes it down unless it stays.
func live(t *testing.T, m *nri.Manager, id string, stays bool) {
	ctx := t.Context()
	if _, err := m.CreateContainer(ctx, id, "p"); err != nil {
		t.Error(err)
	}
	m.CreatedContainer(ctx, id)
	if err := m.StartContainer(ctx, id); err != nil {
		t.Error(err)
	}
	m.StartedContainer(ctx, id)
	if !stays {
		m.StopContainer(ctx, id)
		m.RemoveContainer(ctx, id)
	}
}

// complete checks that p has seen each object once, and nothing of what it was
// not told of; least is how many there must be.
func complete(t *testing.T, p *plugin, least int) {
	t.Helper()
	seen := map[string]string{}
	for _, s := range p.synced {
		id, _ := strings.CutPrefix(s, "container ")
		seen[id] = "Synchronize"
	}
	created := 0
	for _, e := range p.told() {
		event, id, _ := strings.Cut(e, " ")
		how := seen[id]
		switch {
		case event == "RunPodSandbox":
		case event == "CreateContainer":
			created++
			if how != "" {
				t.Errorf("%s is told of %s by CreateContainer, after %s", p.name, id, how)
			}
			seen[id] = event
		case how == "":
			t.Errorf("%s is told %s, and has not been told of it", p.name, e)
		case how == "RemoveContainer":
			t.Errorf("%s is told %s after its end", p.name, e)
		case event == "RemoveContainer":
			seen[id] = event
		}
	}
	if created < least {
		t.Errorf("%s was told of %d containers, there were %d", p.name, created, least)
	}
}

// living is what the plugin believes to exist.
func (p *plugin) living() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]bool{}
	for _, s := range p.synced {
		all[s] = true
	}
	for _, e := range p.events {
		event, id, _ := strings.Cut(e, " ")
		switch event {
		case "RunPodSandbox":
			all["pod "+id] = true
		case "CreateContainer":
			all["container "+id] = true
		case "RemoveContainer":
			delete(all, "container "+id)
		}
	}
	out := make([]string, 0, len(all))
	for s := range all {
		out = append(out, s)
	}
	return slices.Sorted(slices.Values(out))
}

// A container whose hook comes while a plugin takes in what exists waits, and is
// told of by its hook.
func TestHookWaitsForSynchronize(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	fatal(t, m.RunPod(t.Context(), "p"))
	_, err := m.CreateContainer(t.Context(), "before", "p")
	fatal(t, err)
	entered, release := make(chan struct{}), make(chan struct{})
	p := &plugin{name: "slow"}
	p.onSync = func() {
		close(entered)
		<-release
	}
	joined := make(chan error, 1)
	go func() { joined <- connect(t, c, "10", p) }()
	<-entered
	created := make(chan error, 1)
	go func() {
		_, err := m.CreateContainer(t.Context(), "during", "p")
		created <- err
	}()
	close(release)
	fatal(t, <-joined)
	fatal(t, <-created)
	want(t, slices.Sorted(slices.Values(p.synced)), "container before", "pod p")
	want(t, p.told(), "CreateContainer during")
}

// After a restart of the daemon plugins are given what stands, and told of its end.
func TestRestart(t *testing.T) {
	c := config(t)
	n := &node{existing: nri.Existing{
		Pods: []nri.ExistingPod{{ID: "p"}, {ID: "stopped", Stopped: true}},
		Containers: []nri.ExistingContainer{
			{ID: "created", Pod: "p"}, {ID: "running", Pod: "p", Started: true},
			{ID: "ended", Pod: "p", Started: true, Stopped: true}, {ID: "of-stopped", Pod: "stopped"},
		},
	}}
	m := start(t, c, n)
	p := join(t, c, "10", &plugin{})
	want(t, slices.Sorted(slices.Values(p.synced)), "container created", "container ended", "container running", "pod p")
	ctx := t.Context()
	m.RemovePod(ctx, "stopped")
	m.StopPod(ctx, "p")
	want(t, p.told(), "RemoveContainer of-stopped", "RemovePodSandbox stopped", "StopContainer running", "StopPodSandbox p")
}
