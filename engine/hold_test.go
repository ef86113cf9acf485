// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sandflow-cri/sandflow/engine"
)

// While a subject is held no move begins, yet it can be amended and read.
func TestHoldKeepsMovesOut(t *testing.T) {
	b := newBench(t)
	b.must("ctr create c1")
	started := make(chan error, 1)
	err := b.Hold(t.Context(), "ctr", "c1", func(c ctx, v *engine.View) error {
		if v.Station != "created" || v.Phase != engine.Standing {
			t.Errorf("held at %s, %s", v.Station, v.Phase)
		}
		go func() { started <- b.do(t.Context(), "ctr start c1") }()
		if err := b.Amend(c, "ctr", "c1", exit.With(7)); err != nil {
			t.Error(err)
		}
		for range 100 {
			if got := b.stand("ctr", "c1"); got != `standing at "created"` {
				t.Fatalf("a held subject is %s", got)
			}
		}
		return errBoom
	})
	isError(t, err, errBoom)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	equal(t, "after the hold", b.stand("ctr", "c1"), `standing at "running"`)
}

// A descent that will not wait ends the context of the one who holds, and waits for him.
func TestHoldIsInterrupted(t *testing.T) {
	b := newBench(t)
	b.must("ctr create c1")
	inside, down := make(chan struct{}), make(chan error, 1)
	go func() {
		<-inside
		down <- b.Descend(t.Context(), "ctr", "remove", "c1", engine.DescendOptions{Interrupt: true})
	}()
	err := b.Hold(t.Context(), "ctr", "c1", func(c ctx, _ *engine.View) error {
		close(inside)
		<-c.Done()
		equal(t, "while it is held", b.stand("ctr", "c1"), `standing at "created"`)
		return context.Cause(c)
	})
	isError(t, err, context.Canceled)
	if err := <-down; err != nil {
		t.Fatal(err)
	}
	equal(t, "after the descent", b.stand("ctr", "c1"), "gone")
}

func TestHoldRefuses(t *testing.T) {
	b := newBench(t)
	never := func(ctx, *engine.View) error {
		t.Error("what cannot be held was held")
		return nil
	}
	isError(t, b.Hold(t.Context(), "ctr", "none", never), engine.ErrNotFound)
	b.must("ctr create c1")
	b.w.set("undo-rootfs", errBoom)
	if err := b.do(t.Context(), "ctr remove c1"); err == nil {
		t.Fatal("the removal did not get stuck")
	}
	isError(t, b.Hold(t.Context(), "ctr", "c1", never), engine.ErrBusy)
	b.must("ctr create c2")
	err := b.Hold(t.Context(), "ctr", "c2", func(ctx, *engine.View) error { panic("boom") })
	if p, ok := errors.AsType[*engine.PanicError](err); !ok {
		t.Errorf("a panic gave %v, %v", p, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	err = b.Hold(t.Context(), "ctr", "c2", func(ctx, *engine.View) error { return b.Hold(gone, "ctr", "c2", never) })
	isError(t, err, context.Canceled)
}
