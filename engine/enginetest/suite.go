// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package enginetest has the one suite that every action runs through with its
// real self: whatever happens between Do and Undo, the world must afterwards be
// as it was before.
package enginetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// Subject is the action under test and the world around it.
type Subject struct {
	// New makes the action, as a start of the daemon would. Called again for
	// the cases in which a crash lost everything in memory.
	New func(t *testing.T) engine.Action
	// Workflow and Flow are what the Run tells the action.
	Workflow, Flow string
	// Values are the slots of the subject id: what the workflow gives and
	// earlier steps filled. It may make what they point at (with t.Cleanup), as
	// long as World does not count it or it is made before the first count.
	Values func(t *testing.T, id string) []engine.Value
	// World lists all that the action could leave behind, in any order.
	World func(t *testing.T, id string) []string
	// Check, if set, is called after each Do that must succeed.
	Check func(t *testing.T, r *engine.Run)
	// CancelAfter are the times into Do at which its context is cancelled. The
	// default is before it begins, and at a quarter, half and three quarters of
	// the time that an undisturbed Do took.
	CancelAfter []time.Duration
	// NoTrace is set for an action whose Do leaves nothing in World to see.
	NoTrace bool
}

// Suite runs all cases, each with an id of its own.
func Suite(t *testing.T, s Subject) {
	t.Helper()
	took := time.Duration(0)
	t.Run("do undo", s.run(func(c *try) {
		start := time.Now()
		c.do()
		took = time.Since(start)
		c.undo()
	}))
	t.Run("do undo undo", s.run(func(c *try) { c.do(); c.undo(); c.undo() }))
	t.Run("do undo do undo", s.run(func(c *try) { c.do(); c.undo(); c.forget(); c.do(); c.undo() }))
	t.Run("undo without do", s.run(func(c *try) { c.undo() }))
	t.Run("undo that knows the id only", s.run(func(c *try) { c.values = nil; c.undo() }))
	t.Run("crash that lost the result", s.run(func(c *try) { c.do(); c.forget(); c.undo() }))
	t.Run("crash that lost the record", s.run(func(c *try) { c.do(); c.forget(); c.values = nil; c.undo() }))
	points := s.CancelAfter
	if len(points) == 0 {
		points = []time.Duration{0, took / 4, took / 2, took * 3 / 4}
	}
	for i, after := range points {
		t.Run(fmt.Sprintf("cancel at point %d", i), s.run(func(c *try) { c.cancel(after); c.undo() }))
		t.Run(fmt.Sprintf("cancel at point %d and crash", i), s.run(func(c *try) { c.cancel(after); c.forget(); c.undo() }))
	}
	t.Run("sweep", s.run(func(c *try) { c.sweep() }))
}

// try is one case: one subject from before its Do to after its Undo.
type try struct {
	t      *testing.T
	s      Subject
	id     string
	action engine.Action
	given  []engine.Value
	values []engine.Value // given, and what Do has filled
	before []string
}

func (s Subject) run(body func(*try)) func(*testing.T) {
	return func(t *testing.T) {
		c := &try{t: t, s: s, id: id(t.Name()), action: s.New(t)}
		if s.Values != nil {
			c.given = s.Values(t, c.id)
		}
		c.values = c.given
		c.before = c.world()
		body(c)
		c.same("after it all")
	}
}

// id is short, as names of interfaces are, and differs from case to case.
func id(name string) string {
	h := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return fmt.Sprintf("%016x%016x%016x%016x", h, h*3+1, h*5+1, h*7+1)
}

func (c *try) world() []string {
	w := slices.Clone(c.s.World(c.t, c.id))
	slices.Sort(w)
	return w
}

// same fails the case if the world is not as it was at the beginning.
func (c *try) same(when string) {
	c.t.Helper()
	if now := c.world(); !slices.Equal(c.before, now) {
		c.t.Fatalf("%s the world has changed\nbefore:\n  %s\nnow:\n  %s", when,
			strings.Join(c.before, "\n  "), strings.Join(now, "\n  "))
	}
}

// do must succeed.
func (c *try) do() {
	c.t.Helper()
	r := c.newRun(c.action)
	if err := c.action.Do(c.t.Context(), r); err != nil {
		c.t.Fatalf("do: %v", err)
	}
	c.values = r.Values()
	if c.s.Check != nil {
		c.s.Check(c.t, c.newRun(nil))
	}
	if !c.s.NoTrace && slices.Equal(c.before, c.world()) {
		c.t.Fatal("do left nothing that World sees: the suite would prove nothing")
	}
}

// undo must succeed, whatever came before it.
func (c *try) undo() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), time.Minute)
	defer cancel()
	if err := c.action.Undo(ctx, c.newRun(nil)); err != nil {
		c.t.Fatalf("undo: %v", err)
	}
	c.same("after undo")
}

// cancel runs a Do whose context ends after a time. It may fail or succeed.
func (c *try) cancel(after time.Duration) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	if after == 0 {
		cancel()
	} else {
		timer := time.AfterFunc(after, cancel)
		defer timer.Stop()
	}
	r := c.newRun(c.action)
	if err := c.action.Do(ctx, r); err != nil {
		c.t.Logf("do, cancelled after %v: %v", after, err)
	}
	c.values = r.Values()
}

// forget is the crash: memory and what Do has filled are gone, the given slots stay.
func (c *try) forget() {
	c.action = c.s.New(c.t)
	c.values = c.given
}

// sweep leaves what Do has made without a record and lets Sweep find it.
func (c *try) sweep() {
	sweeper, ok := c.action.(engine.Sweeper)
	if !ok {
		c.t.Skip("the action has no Sweep")
	}
	c.do()
	made := c.world()
	c.swept(sweeper, engine.NewSweep(false, func(string, string) bool { return true }), "knows all")
	if !slices.Equal(made, c.world()) {
		c.t.Fatal("sweep removed what a record knows")
	}
	c.swept(sweeper, engine.NewSweep(true, c.unknown), "dry run")
	if !slices.Equal(made, c.world()) {
		c.t.Fatal("a dry run removed something")
	}
	c.swept(sweeper, engine.NewSweep(false, c.unknown), "for real")
	c.same("after sweep")
	c.undo()
}

// unknown is a journal that has lost this subject and no other.
func (c *try) unknown(_, id string) bool { return id != c.id }

func (c *try) swept(sweeper engine.Sweeper, s *engine.Sweep, what string) {
	c.t.Helper()
	if err := sweeper.Sweep(c.t.Context(), s); err != nil {
		c.t.Fatalf("sweep, %s: %v", what, err)
	}
	for _, f := range s.Found() {
		if f.Error != "" {
			c.t.Fatalf("sweep, %s: %s %s: %s", what, f.Kind, f.Name, f.Error)
		}
	}
}

func (c *try) newRun(a engine.Action) *engine.Run {
	c.t.Helper()
	r, err := engine.NewRun(a, c.s.Workflow, c.s.Flow, c.id, c.values...)
	if err != nil {
		c.t.Fatalf("make a run: %v", err)
	}
	return r
}
