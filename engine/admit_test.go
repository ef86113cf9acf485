// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sandflow-cri/sandflow/engine"
)

var errTaken = errors.New("not wanted as it is")

// What a failed climb leaves behind is there before the next one, which can refuse to begin.
func TestAdmitSeesWhatAFailedClimbLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("ctr create 1")
		g := b.w.gate("do-task", true)
		b.w.failGated("do-task")
		options := engine.ClimbOptions{
			Admit: func(v *engine.View) error {
				if _, ended, _ := exit.Get(v); ended {
					return errTaken
				}
				return nil
			},
			Failed: func(error) []engine.Value { return []engine.Value{exit.With(128)} },
		}
		start := func() error { return b.Climb(t.Context(), "ctr", "start", "1", options) }
		first := async(start)
		<-g.entered
		second := async(start)
		pending(t, "the second start", second)
		close(g.open)
		isError(t, <-first, errBoom)
		isError(t, <-second, errTaken)
		equal(t, "story", b.w.story(), "do-rootfs do-spec do-task undo-task")
		v, _ := b.Get("ctr", "1")
		if code, ok, err := exit.Get(v); code != 128 || !ok || err != nil {
			t.Errorf("it has ended with %d, %t, %v", code, ok, err)
		}
	})
}

// With failover off the values are there too; a climb that is refused leaves none.
func TestFailedWithoutRollback(t *testing.T) {
	b := newBench(t)
	b.must("ctr create 1")
	b.must("ctr create 2")
	off := false
	b.w.fail["do-task"] = errBoom
	failed := func(error) []engine.Value { return []engine.Value{exit.With(128)} }
	isError(t, b.Climb(t.Context(), "ctr", "start", "1", engine.ClimbOptions{Failover: &off, Failed: failed}), errBoom)
	refuse := func(*engine.View) error { return errTaken }
	isError(t, b.Climb(t.Context(), "ctr", "start", "2", engine.ClimbOptions{Admit: refuse, Failed: failed}), errTaken)
	for id, want := range map[string]bool{"1": true, "2": false} {
		v, _ := b.Get("ctr", id)
		if _, ok, err := exit.Get(v); ok != want || err != nil {
			t.Errorf("%s has ended: %t, %v", id, ok, err)
		}
	}
}
