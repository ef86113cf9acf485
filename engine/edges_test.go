// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/sandflow-cri/sandflow/engine"
)

func TestViewsAreImmutable(t *testing.T) {
	b := newBench(t)
	b.must("pod create 1")
	if err := b.Amend(t.Context(), "pod", "1", exit.With(1)); err != nil {
		t.Fatal(err)
	}
	old, _ := b.Get("pod", "1")
	if err := b.Amend(t.Context(), "pod", "1", exit.With(2)); err != nil {
		t.Fatal(err)
	}
	if n, _, _ := exit.Get(old); n != 1 {
		t.Errorf("a view has changed: %d", n)
	}
}

// What an earlier climb has filled is not taken for what this one fills.
func TestSlotsAreFilledAnew(t *testing.T) {
	w := newWorld()
	o := options(w, newMemory())
	o.Lookup = func(name string) (engine.Action, bool) {
		if name == "task" {
			return &netAct{act{w, "task"}}, true
		}
		return w.lookup(name)
	}
	b := &bench{Engine: start(t, o, defaults()), t: t, w: w}
	b.must("ctr create 1")
	b.must("ctr start 1")
	b.must("ctr stop 1")
	v, _ := b.Get("ctr", "1")
	if _, ok, _ := address.Get(v); !ok {
		t.Error("after its undo a value no longer tells what was")
	}
	w.hook["do-task"] = func(ctx) error { return errBoom }
	isError(t, b.do(t.Context(), "ctr start 1"), errBoom)
	v, _ = b.Get("ctr", "1")
	if _, ok, _ := address.Get(v); ok {
		t.Error("the value of the climb before is still there")
	}
}

// blocking lets a test hold one write.
type blocking struct {
	*memory
	hold chan chan struct{} // a write takes a channel from here and waits for it
}

func (b *blocking) Write(changes []engine.Change) error {
	select {
	case c := <-b.hold:
		<-c
	default:
	}
	return b.memory.Write(changes)
}

// An amendment beside the removal must not bring the record back.
func TestAmendBesideTheRemoval(t *testing.T) {
	w, j := newWorld(), &blocking{memory: newMemory(), hold: make(chan chan struct{}, 1)}
	b := &bench{Engine: start(t, options(w, j), defaults()), t: t, w: w}
	b.must("pod create 1")
	b.must("pod destroy 1")
	c := make(chan struct{})
	j.hold <- c
	down := async(func() error { return b.do(t.Context(), "pod cleanup 1") })
	for len(j.hold) > 0 { // until the removal is being written
		continue
	}
	isError(t, b.Amend(t.Context(), "pod", "1", exit.With(1)), engine.ErrNotFound)
	close(c)
	if err := <-down; err != nil {
		t.Error(err)
	}
	if len(j.data) > 0 {
		t.Errorf("the record is back: %s", j.data)
	}
}

// The journal believes that the subject stands, and cannot be told otherwise:
// then its rollback has to wait, or a crash would take ruins for a pod.
func TestRollbackThatCannotBeJournaled(t *testing.T) {
	full := errors.New("disk full")
	var b *bench
	b = observed(t, observer(func(c ctx, s engine.Span, next func(ctx) error) error {
		err := next(c)
		if s.Action == "" && s.Flow == "create" && !s.Down {
			b.j.failing(full)
			return errBoom
		}
		return err
	}))
	err := b.do(t.Context(), "pod create 1")
	isError(t, err, errBoom)
	isError(t, err, full)
	equal(t, "story", b.w.story(), "do-files do-ns do-net do-shim")
	equal(t, "stand", b.stand("pod", "1"), `stuck at ""`)
	b.j.failing(nil)
	b.must("pod destroy 1")
	equal(t, "stand", b.stand("pod", "1"), "gone")
	if len(b.w.left()) > 0 || len(b.j.data) > 0 {
		t.Errorf("left: %v, %s", b.w.left(), b.j.data)
	}
}

// Callers that leave the queue just when their place is given lose no place.
func TestPlacesAreNotLost(t *testing.T) {
	w := newWorld()
	cfg := defaults()
	cfg["image"]["pull"] = engine.FlowConfig{Concurrent: 1, Queue: 100}
	b := &bench{Engine: start(t, options(w, newMemory()), cfg), t: t, w: w}
	for range 300 {
		var wg sync.WaitGroup
		for i := range 4 {
			c, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				// Most are cancelled; that is what is tried here.
				_ = b.Job(c, "image", "pull", fmt.Sprint(i), func(ctx) error { return nil })
			})
			wg.Go(cancel)
		}
		wg.Wait()
	}
	f := b.flow("image", "pull")
	if f.InFlight != 0 || f.Waiting != 0 || f.Peak > 1 {
		t.Error(b.counters("image", "pull"))
	}
}

// Many moves of many subjects at once, for the race detector.
func TestChurn(t *testing.T) {
	b := newBench(t)
	b.w.hook["do-net"] = func(c ctx) error { return c.Err() }
	stop, end := context.WithCancel(t.Context())
	cleanup := async(func() error { b.RunCleanup(stop); return nil })
	var wg sync.WaitGroup
	for i := range 20 {
		id := fmt.Sprint(i)
		c, cancel := context.WithCancel(t.Context())
		wg.Go(func() { _ = b.Climb(c, "pod", "create", id, given("n"+fmt.Sprint(i%5))) })
		wg.Go(func() {
			if i%3 == 0 {
				cancel()
			}
			_ = b.Amend(t.Context(), "pod", id, exit.With(i))
			_ = b.Descend(t.Context(), "pod", "destroy", id, engine.DescendOptions{Interrupt: i%2 == 0})
		})
		wg.Go(func() {
			<-b.Watch("pod", id)
			b.Flows()
			b.List("pod")
		})
	}
	for range 20 { // names are shared: those that wait for a holder need it gone
		for _, v := range b.List("pod") {
			if err := b.Descend(t.Context(), "pod", "cleanup", v.ID, engine.DescendOptions{Interrupt: true}); err != nil {
				t.Error(err)
			}
		}
	}
	wg.Wait()
	for _, v := range b.List("pod") {
		b.must("pod cleanup " + v.ID)
	}
	end()
	if err := <-cleanup; err != nil {
		t.Error(err)
	}
	if left := b.w.left(); len(left) > 0 || len(b.j.data) > 0 {
		t.Errorf("left: %v, %s", left, b.j.data)
	}
}
