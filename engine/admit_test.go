// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandflow-cri/sandflow/engine"
)

var errTaken = errors.New("not wanted as it is")

// unlessFailed refuses a subject whose last climb has failed.
func unlessFailed(v *engine.View) error {
	if v.Error != "" {
		return errTaken
	}
	return nil
}

// That a climb has failed is known before the next one, which can refuse to begin.
func TestAdmitSeesThatAClimbHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("ctr create 1")
		g := b.w.gate("do-task", true)
		b.w.failGated("do-task")
		start := func() error {
			return b.Climb(t.Context(), "ctr", "start", "1", engine.ClimbOptions{Admit: unlessFailed})
		}
		first := async(start)
		<-g.entered
		second := async(start)
		pending(t, "the second start", second)
		close(g.open)
		isError(t, <-first, errBoom)
		isError(t, <-second, errTaken)
		equal(t, "story", b.w.story(), "do-rootfs do-spec do-task undo-task")
	})
}

// A climb that was refused, or could not be journaled, has not been begun.
func TestAClimbThatDidNothingLeavesNoCause(t *testing.T) {
	b := newBench(t)
	b.must("ctr create 1")
	refuse := func(*engine.View) error { return errTaken }
	isError(t, b.Climb(t.Context(), "ctr", "start", "1", engine.ClimbOptions{Admit: refuse}), errTaken)
	b.j.at = func(n int) (bool, error) {
		b.j.at = nil
		return false, errBoom
	}
	isError(t, b.do(t.Context(), "ctr start 1"), errBoom)
	if v, _ := b.Get("ctr", "1"); v.Error != "" {
		t.Errorf("the cause is %q", v.Error)
	}
	b.must("ctr start 1")
	equal(t, "story", b.w.story(), "do-rootfs do-spec do-task")
}

// A climb whose action has been done is not taken for one that never was, wherever the daemon
// was killed in it, and in the recovery after that.
func TestACutClimbIsTold(t *testing.T) {
	cut := 0
	for n, crashed := 1, true; crashed; n++ {
		for m, again := 1, true; again; m++ {
			w, j := newWorld(), newMemory()
			j.at = killAtWrite(w, n, false)
			e := boot(t, w, j)
			crashed = live(t, e, w, "ctr create 1, ctr start 1")
			closeEngine(t, e)
			w.revive()
			done := strings.Contains(w.story(), "do-task")
			j.writes, j.at = 0, killAtWrite(w, m, false)
			closeEngine(t, boot(t, w, j))
			again = w.isDead()
			w.revive()
			j.at = nil
			e = boot(t, w, j)
			if v, ok := e.Get("ctr", "1"); ok && v.Station == "created" && done {
				cut++
				if v.Error == "" {
					t.Errorf("killed at write %d and %d: nothing says that the task was done", n, m)
				}
			}
			closeEngine(t, e)
		}
	}
	if cut == 0 {
		t.Error("no climb was cut")
	}
}
