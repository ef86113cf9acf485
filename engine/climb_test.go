// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// gate holds an event until it is opened, deaf to its context or not.
type gate struct{ entered, open chan struct{} }

func (w *world) gate(event string, deaf bool) *gate {
	g := &gate{entered: make(chan struct{}, 100), open: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook[event] = func(c ctx) error {
		g.entered <- struct{}{}
		done := c.Done()
		if deaf {
			done = nil
		}
		select {
		case <-g.open:
			return nil
		case <-done:
			return c.Err()
		}
	}
	return g
}

// failGated makes the event fail once its gate has let it through.
func (w *world) failGated(event string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hook := w.hook[event]
	w.hook[event] = func(c ctx) error { return errors.Join(hook(c), errBoom) }
}

// async runs f and gives its error later.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func pending(t *testing.T, what string, c <-chan error) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		t.Fatalf("%s did not wait: %v", what, err)
	default:
	}
}

func TestSameRequestAfterACancelledOneStartsClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		g, back := b.w.gate("do-net", false), b.w.gate("undo-net", true)
		c, cancel := context.WithCancel(t.Context())
		first := async(func() error { return b.Climb(c, "pod", "create", "1", given("n")) })
		<-g.entered
		cancel()
		close(g.open)
		<-back.entered
		second := async(func() error { return b.Climb(t.Context(), "pod", "create", "2", given("n")) })
		pending(t, "the second", second)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		isError(t, b.Climb(short, "pod", "create", "3", given("n")), context.DeadlineExceeded)
		b.w.mu.Lock()
		if b.w.made["files 2"] {
			t.Error("the second began before the rollback ended")
		}
		b.w.mu.Unlock()
		close(back.open)
		isError(t, <-first, context.Canceled)
		if err := <-second; err != nil {
			t.Error(err)
		}
		equal(t, "first", b.stand("pod", "1"), "gone")
		equal(t, "second", b.stand("pod", "2"), `standing at "ready"`)
		v, _ := b.ByName("pod", "n")
		equal(t, "holder", v.ID, "2")
	})
}

func TestNameWaitsForDescent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.Climb(t.Context(), "pod", "create", "1", given("n")); err != nil {
			t.Fatal(err)
		}
		g := b.w.gate("undo-net", true)
		down := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		<-g.entered
		reserved := async(func() error { return b.Climb(t.Context(), "pod", "create", "2", given("n")) })
		pending(t, "a name on its way down", reserved)
		close(g.open)
		if err := <-down; err != nil {
			t.Error(err)
		}
		// Down at "reserved" the holder still stands, and keeps its name.
		var taken *engine.NameTakenError
		if err := <-reserved; !errors.As(err, &taken) || taken.ID != "1" || taken.Stuck != "" {
			t.Errorf("not taken: %v", err)
		}
		b.must("pod cleanup 1")
		if err := b.Climb(t.Context(), "pod", "create", "2", given("n")); err != nil {
			t.Error(err)
		}
	})
}

func TestDescendWaitsForAClimb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		g := b.w.gate("do-net", false)
		up := async(func() error { return b.do(t.Context(), "pod create 1") })
		<-g.entered
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		isError(t, b.Descend(short, "pod", "destroy", "1", engine.DescendOptions{}), context.DeadlineExceeded)
		down := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		pending(t, "the descent", down)
		if got := len(b.List("pod")); got != 1 {
			t.Errorf("a list beside a move shows %d", got)
		}
		close(g.open)
		if err := errors.Join(<-up, <-down); err != nil {
			t.Error(err)
		}
		equal(t, "stand", b.stand("pod", "1"), `standing at "reserved"`)
	})
}

func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		g := b.w.gate("do-net", false)
		up := async(func() error { return b.do(t.Context(), "pod create 1") })
		<-g.entered
		if err := b.Descend(t.Context(), "pod", "destroy", "1", engine.DescendOptions{Interrupt: true}); err != nil {
			t.Error(err)
		}
		isError(t, <-up, context.Canceled)
		equal(t, "stand", b.stand("pod", "1"), "gone")
		equal(t, "story", b.w.story(), "do-files do-ns do-net undo-net undo-files undo-ns")
	})
}

func TestInterruptReachesAClimbThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("ctr create 1")
		g := b.w.gate("do-task", true)
		b.w.failGated("do-task")
		first := async(func() error { return b.do(t.Context(), "ctr start 1") })
		<-g.entered
		second := async(func() error { return b.do(t.Context(), "ctr start 1") })
		pending(t, "the second start", second)
		down := async(func() error {
			return b.Descend(t.Context(), "ctr", "remove", "1", engine.DescendOptions{Interrupt: true})
		})
		pending(t, "the descent", down)
		close(g.open)
		isError(t, <-first, errBoom)
		isError(t, <-second, context.Canceled)
		if err := <-down; err != nil {
			t.Error(err)
		}
		equal(t, "stand", b.stand("ctr", "1"), "gone")
		equal(t, "the second did nothing", b.w.story(), "do-rootfs do-spec do-task undo-task undo-spec undo-rootfs")
	})
}

func TestDescentIsDetachedAndJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("pod create 1")
		g := b.w.gate("undo-net", true)
		c, cancel := context.WithCancel(t.Context())
		first := async(func() error { return b.Descend(c, "pod", "cleanup", "1", engine.DescendOptions{}) })
		<-g.entered
		cancel()
		isError(t, <-first, context.Canceled)
		second := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		third := async(func() error { return b.do(t.Context(), "pod cleanup 1") })
		pending(t, "the second", second)
		pending(t, "the third", third)
		close(g.open)
		if err := errors.Join(<-second, <-third); err != nil {
			t.Error(err)
		}
		equal(t, "stand", b.stand("pod", "1"), "gone")
		equal(t, "story", b.w.story(), "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns")
	})
}

func TestJoinedDescentTellsAllThatItIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("pod create 1")
		g := b.w.gate("undo-net", true)
		b.w.failGated("undo-net")
		one := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		<-g.entered
		two := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		pending(t, "the second", two)
		close(g.open)
		isError(t, <-one, errBoom)
		isError(t, <-two, errBoom)
		b.w.mu.Lock()
		delete(b.w.hook, "undo-net")
		b.w.mu.Unlock()
	})
}

func TestHungSubjectStallsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("pod create 1")
		g := b.w.gate("undo-shim", true)
		hung := async(func() error { return b.do(t.Context(), "pod destroy 1") })
		<-g.entered
		b.w.mu.Lock()
		delete(b.w.hook, "undo-shim")
		b.w.mu.Unlock()
		b.must("pod create 2")
		b.must("pod cleanup 2")
		if err := b.Amend(t.Context(), "pod", "1", exit.With(3)); err != nil {
			t.Error(err)
		}
		v, _ := b.Get("pod", "1")
		code, _, _ := exit.Get(v)
		equal(t, "seen beside the move", fmt.Sprint(v.Phase, code), "descending3")
		close(g.open)
		if err := <-hung; err != nil {
			t.Error(err)
		}
		v, _ = b.Get("pod", "1")
		if code, _, _ := exit.Get(v); code != 3 {
			t.Error("the move has lost what was amended beside it")
		}
	})
}

func TestAmendUpdateWatch(t *testing.T) {
	b := newBench(t)
	isError(t, b.Amend(t.Context(), "pod", "1", exit.With(1)), engine.ErrNotFound)
	<-b.Watch("pod", "1")
	b.must("pod create 1")
	watch := b.Watch("pod", "1")
	select {
	case <-watch:
		t.Error("watch of a standing subject is closed")
	default:
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			err := b.Update(t.Context(), "pod", "1", func(v *engine.View) ([]engine.Value, error) {
				n, _, err := exit.Get(v)
				return []engine.Value{exit.With(n + 1)}, err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-watch
	v, _ := b.Get("pod", "1")
	if n, _, _ := exit.Get(v); n != 50 {
		t.Errorf("%d of 50 updates", n)
	}
	before := b.j.writes
	if err := b.Update(t.Context(), "pod", "1", func(*engine.View) ([]engine.Value, error) { return nil, nil }); err != nil || b.j.writes != before {
		t.Errorf("an update of nothing: %v, %d writes", err, b.j.writes-before)
	}
	isError(t, b.Update(t.Context(), "pod", "1", func(*engine.View) ([]engine.Value, error) { return nil, errBoom }), errBoom)
	var p *engine.PanicError
	if err := b.Update(t.Context(), "pod", "1", func(*engine.View) ([]engine.Value, error) { panic("f") }); !errors.As(err, &p) {
		t.Errorf("a panic: %v", err)
	}
	watch = b.Watch("pod", "1")
	if err := b.Descend(t.Context(), "pod", "cleanup", "1", engine.DescendOptions{Values: []engine.Value{exit.With(1)}}); err != nil {
		t.Error(err)
	}
	<-watch
}

func TestJournalFails(t *testing.T) {
	full := errors.New("disk full")
	b := newBench(t)
	b.j.failing(full)
	isError(t, b.do(t.Context(), "pod create 1"), full)
	b.j.failing(nil)
	b.must("pod cleanup 1")
	equal(t, "nothing was entered, so nothing is undone", b.w.story(), "")

	b.must("pod create 2")
	b.w.reset()
	b.j.failing(full)
	isError(t, b.do(t.Context(), "pod destroy 2"), full)
	equal(t, "nothing is undone that the journal believes to stand", b.w.story(), "")
	equal(t, "stand", b.stand("pod", "2"), `standing at "ready"`)
	isError(t, b.Amend(t.Context(), "pod", "2", exit.With(1)), full)
	b.j.failing(nil)
	b.must("pod destroy 2")
	equal(t, "stand", b.stand("pod", "2"), `standing at "reserved"`)

	b.j.failing(full)
	isError(t, b.do(t.Context(), "pod cleanup 2"), full)
	equal(t, "stand", b.stand("pod", "2"), `stuck at "reserved"`)
	b.j.failing(nil)
	b.must("pod cleanup 2")
	equal(t, "stand", b.stand("pod", "2"), "gone")
}

func TestCloseWaitsForMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("pod create 1")
		g := b.w.gate("undo-net", true)
		c, cancel := context.WithCancel(t.Context())
		down := async(func() error { return b.Descend(c, "pod", "destroy", "1", engine.DescendOptions{}) })
		<-g.entered
		cancel()
		isError(t, <-down, context.Canceled)
		closed := async(func() error { return b.Close(context.WithoutCancel(t.Context())) })
		pending(t, "close", closed)
		isError(t, b.do(t.Context(), "pod create 2"), engine.ErrClosed)
		close(g.open)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		equal(t, "stand", b.stand("pod", "1"), `standing at "reserved"`)
	})
}

func TestBeforeBootAndTwice(t *testing.T) {
	w := newWorld()
	e, err := engine.New(options(w, newMemory()), []engine.Definition{podDef}, config{"pod": defaults()["pod"]})
	if err != nil {
		t.Fatal(err)
	}
	isError(t, e.Climb(t.Context(), "pod", "create", "1", given("n")), engine.ErrClosed)
	if err := e.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Boot(t.Context()); err == nil {
		t.Error("booted twice")
	}
	closeEngine(t, e)
}
