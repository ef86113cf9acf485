// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sandflow-cri/sandflow/engine"
)

// One pod or container, a list of moves, and what came of it. A fail is an
// event that fails for as long as the move "heal" has not come.
var ladder = []struct {
	name, moves, fail, skip string
	want, stand             string
}{
	{
		name: "success", moves: "pod create 1",
		want: "do-files do-ns do-net do-shim", stand: `standing at "ready"`,
	}, {
		name: "up and down", moves: "pod create 1, pod destroy 1, pod cleanup 1",
		want: "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns", stand: "gone",
	}, {
		name: "down to reserved only", moves: "pod create 1, pod destroy 1, pod destroy 1",
		want: "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns", stand: `standing at "reserved"`,
	}, {
		name: "to the ground at once", moves: "pod create 1, pod cleanup 1",
		want: "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns", stand: "gone",
	}, {
		name: "down without up", moves: "pod destroy 1, pod cleanup 1",
		want: "", stand: "gone",
	}, {
		name: "first step fails", moves: "pod create 1", fail: "do-ns",
		want: "do-files do-ns undo-files undo-ns", stand: "gone",
	}, {
		name: "the other of the first step fails", moves: "pod create 1", fail: "do-files",
		want: "do-files do-ns undo-files undo-ns", stand: "gone",
	}, {
		name: "second step fails", moves: "pod create 1", fail: "do-net",
		want: "do-files do-ns do-net undo-net undo-files undo-ns", stand: "gone",
	}, {
		name: "last step fails", moves: "pod create 1", fail: "do-shim",
		want: "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns", stand: "gone",
	}, {
		name: "the next with the same name and id", moves: "pod create 1, heal, pod create 1", fail: "do-net",
		want:  "do-files do-ns do-net undo-net undo-files undo-ns do-files do-ns do-net do-shim",
		stand: `standing at "ready"`,
	}, {
		name: "skipped, yet undone", moves: "pod create 1, pod cleanup 1", skip: "net",
		want: "do-files do-ns do-shim undo-shim undo-net undo-files undo-ns", stand: "gone",
	}, {
		name: "two flows up, two down", moves: "ctr create 1, ctr start 1, ctr stop 1, ctr remove 1",
		want: "do-rootfs do-spec do-task undo-task undo-spec undo-rootfs", stand: "gone",
	}, {
		name: "second flow fails", moves: "ctr create 1, ctr start 1", fail: "do-task",
		want: "do-rootfs do-spec do-task undo-task", stand: `standing at "created"`,
	}, {
		name: "second flow again", moves: "ctr create 1, ctr start 1, heal, ctr start 1", fail: "do-task",
		want: "do-rootfs do-spec do-task undo-task do-task", stand: `standing at "running"`,
	}, {
		name: "stop of one not started", moves: "ctr create 1, ctr stop 1",
		want: "do-rootfs do-spec", stand: `standing at "created"`,
	}, {
		name: "remove of one running", moves: "ctr create 1, ctr start 1, ctr remove 1",
		want: "do-rootfs do-spec do-task undo-task undo-spec undo-rootfs", stand: "gone",
	}, {
		name: "start of one running", moves: "ctr create 1, ctr start 1, ctr start 1",
		want: "do-rootfs do-spec do-task", stand: `standing at "running"`,
	}, {
		name: "stuck going down: all of the step are tried", moves: "pod create 1, pod destroy 1", fail: "undo-files",
		want: "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns", stand: `stuck at "reserved"`,
	}, {
		name: "stuck going down: what is below is not touched", moves: "pod create 1, pod cleanup 1", fail: "undo-net",
		want: "do-files do-ns do-net do-shim undo-shim undo-net", stand: `stuck at ""`,
	}, {
		name: "stuck and resumed", moves: "pod create 1, pod destroy 1, pod destroy 1, heal, pod destroy 1", fail: "undo-net",
		want:  "do-files do-ns do-net do-shim undo-shim undo-net undo-net undo-net undo-files undo-ns",
		stand: `standing at "reserved"`,
	}, {
		name: "stuck and resumed further down", moves: "pod create 1, pod destroy 1, heal, pod cleanup 1", fail: "undo-ns",
		want:  "do-files do-ns do-net do-shim undo-shim undo-net undo-files undo-ns undo-ns",
		stand: "gone",
	}, {
		name: "stuck in rollback, resumed to where that went", moves: "pod create 1, heal, pod destroy 1", fail: "do-net undo-net",
		want:  "do-files do-ns do-net undo-net undo-net undo-files undo-ns",
		stand: "gone",
	},
}

func TestLadder(t *testing.T) {
	for _, c := range ladder {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			for _, f := range strings.Fields(c.fail) {
				b.w.set(f, errBoom)
			}
			for _, s := range strings.Fields(c.skip) {
				b.w.skip[s] = true
			}
			for _, move := range strings.Split(c.moves, ", ") {
				if move == "heal" {
					for _, f := range strings.Fields(c.fail) {
						b.w.set(f, nil)
					}
					continue
				}
				if err := b.do(t.Context(), move); err != nil {
					t.Logf("%s: %v", move, err)
				}
			}
			equal(t, "story", b.w.story(), c.want)
			workflow, _, _ := strings.Cut(c.moves, " ")
			equal(t, "stand", b.stand(workflow, "1"), c.stand)
			if c.stand == "gone" && (len(b.w.left()) > 0 || len(b.j.data) > 0) {
				t.Errorf("left: %v, records %v", b.w.left(), b.j.data)
			}
		})
	}
}

func TestErrorsSayWhat(t *testing.T) {
	b := newBench(t)
	b.w.set("do-net", errBoom)
	b.w.set("undo-ns", errors.New("busy"))
	err := b.do(t.Context(), "pod create 1")
	isError(t, err, errBoom)
	var failed *engine.ActionError
	if !errors.As(err, &failed) || failed.Action != "net" || failed.ID != "1" || failed.Workflow != "pod" {
		t.Errorf("not the action's error: %#v", failed)
	}
	var stuck *engine.StuckError
	if !errors.As(err, &stuck) {
		t.Errorf("the rollback's error is not in %v", err)
	}
	equal(t, "text", err.Error(), "do net of pod 1: boom; rollback: pod 1 is stuck on the way down: undo ns of pod 1: busy")

	v, _ := b.Get("pod", "1")
	equal(t, "view", v.Error, "undo ns of pod 1: busy")
	if v.Attempts != 1 || v.Retry.IsZero() {
		t.Errorf("attempts %d, retry %v", v.Attempts, v.Retry)
	}
	var taken *engine.NameTakenError
	if err := b.Climb(t.Context(), "pod", "create", "2", given("name-1")); !errors.As(err, &taken) || taken.ID != "1" || taken.Stuck == "" {
		t.Errorf("the stuck holder is not named: %v", err)
	}
	b.w.set("do-net", nil)
	b.must("pod create 3") // other metadata
}

func TestErrorOfLastMoveIsKept(t *testing.T) {
	b := newBench(t)
	b.must("ctr create 1")
	b.w.set("do-task", errBoom)
	b.w.set("undo-task", errBoom)
	isError(t, b.do(t.Context(), "ctr start 1"), errBoom)
	b.w.set("undo-task", nil)
	b.must("ctr stop 1")
	v, _ := b.Get("ctr", "1")
	equal(t, "error", v.Error, "do task of ctr 1: boom")
	b.w.set("do-task", nil)
	b.must("ctr start 1")
	v, _ = b.Get("ctr", "1")
	equal(t, "error", v.Error, "")
}

func TestMisuse(t *testing.T) {
	b := newBench(t)
	b.must("pod create 1")
	isError(t, b.do(t.Context(), "pod create 1"), engine.ErrExists)
	isError(t, b.Climb(t.Context(), "pod", "create", "2", given("name-1")), engine.ErrExists)
	isError(t, b.do(t.Context(), "ctr start 1"), engine.ErrNotFound)
	isError(t, b.do(t.Context(), "pod stop 1"), engine.ErrUnknownFlow)
	isError(t, b.do(t.Context(), "pot stop 1"), engine.ErrUnknownFlow)
	isError(t, b.Climb(t.Context(), "pod", "create", "2", engine.ClimbOptions{}), engine.ErrUnset)
	if err := b.Climb(t.Context(), "pod", "create", "", given("")); err == nil {
		t.Error("an empty id was accepted")
	}
	b.must("ctr create 1")
	b.must("ctr start 1")
	isError(t, b.do(t.Context(), "ctr start 1"), engine.ErrBusy)
}

func TestFailoverOff(t *testing.T) {
	b := newBench(t)
	off := false
	o := given("n")
	o.Failover = &off
	b.w.set("do-net", errBoom)
	isError(t, b.Climb(t.Context(), "pod", "create", "1", o), errBoom)
	equal(t, "story", b.w.story(), "do-files do-ns do-net")
	equal(t, "stand", b.stand("pod", "1"), `standing at ""`)
	v, _ := b.ByName("pod", "n")
	equal(t, "error", v.Error, "do net of pod 1: boom")
	b.w.reset()
	b.must("pod destroy 1")
	equal(t, "story", b.w.story(), "undo-net undo-files undo-ns")
	equal(t, "stand", b.stand("pod", "1"), `standing at "reserved"`)

	b.must("ctr create 1")
	b.w.set("do-task", errBoom)
	isError(t, b.Climb(t.Context(), "ctr", "start", "1", engine.ClimbOptions{Failover: &off}), errBoom)
	isError(t, b.do(t.Context(), "ctr start 1"), engine.ErrBusy)
	b.must("ctr stop 1")
	b.w.set("do-task", nil)
	b.must("ctr start 1")
}

func TestPanics(t *testing.T) {
	for _, event := range []string{"do-files", "do-net", "do-shim", "undo-net"} {
		t.Run(event, func(t *testing.T) {
			b := newBench(t)
			b.w.hook[event] = func(ctx) error { panic("ouch") }
			err := b.do(t.Context(), "pod create 1")
			if strings.HasPrefix(event, "undo") {
				err = b.do(t.Context(), "pod cleanup 1")
				equal(t, "stand", b.stand("pod", "1"), `stuck at ""`)
			} else {
				equal(t, "stand", b.stand("pod", "1"), "gone")
			}
			var p *engine.PanicError
			if !errors.As(err, &p) || len(p.Stack) == 0 || !strings.Contains(err.Error(), "panic: ouch") {
				t.Errorf("not a panic with its stack: %v", err)
			}
			b.w.mu.Lock()
			delete(b.w.hook, event)
			b.w.mu.Unlock()
			b.must("pod cleanup 1")
			if left := b.w.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestCancelAtEachAction(t *testing.T) {
	for _, action := range []string{"files", "ns", "net", "shim"} {
		t.Run(action, func(t *testing.T) {
			b := newBench(t)
			c, cancel := context.WithCancel(t.Context())
			b.w.hook["do-"+action] = func(c ctx) error {
				cancel()
				<-c.Done()
				return c.Err()
			}
			b.w.hook["undo-files"] = func(c ctx) error { return c.Err() }
			err := b.do(c, "pod create 1")
			isError(t, err, context.Canceled)
			equal(t, "stand", b.stand("pod", "1"), "gone")
			if left := b.w.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestCancelBetweenAndAfterSteps(t *testing.T) {
	b := newBench(t)
	c, cancel := context.WithCancel(t.Context())
	b.w.hook["do-net"] = func(ctx) error { cancel(); return nil } // deaf to it
	isError(t, b.do(c, "pod create 1"), context.Canceled)
	equal(t, "story", b.w.story(), "do-files do-ns do-net undo-net undo-files undo-ns")

	c, cancel = context.WithCancel(t.Context())
	delete(b.w.hook, "do-net")
	b.w.hook["do-shim"] = func(ctx) error { cancel(); return nil }
	if err := b.do(c, "pod create 2"); err != nil {
		t.Errorf("past its last step a climb is finished: %v", err)
	}
	equal(t, "stand", b.stand("pod", "2"), `standing at "ready"`)
}

func TestFirstErrorCancelsSiblings(t *testing.T) {
	b := newBench(t)
	b.w.set("do-ns", errBoom)
	b.w.hook["do-files"] = func(c ctx) error {
		<-c.Done()
		return c.Err()
	}
	err := b.do(t.Context(), "pod create 1")
	equal(t, "text", err.Error(), "do ns of pod 1: boom")
}

func TestUndoThatIgnoresItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.must("pod create 1")
		let := make(chan struct{})
		b.w.hook["undo-net"] = func(ctx) error { <-let; return nil }
		err := b.do(t.Context(), "pod destroy 1")
		isError(t, err, context.DeadlineExceeded)
		b.w.reset()
		if err := b.do(t.Context(), "pod destroy 1"); err == nil || !strings.Contains(err.Error(), "not returned yet") {
			t.Errorf("a second undo beside the first: %v", err)
		}
		equal(t, "story", b.w.story(), "")
		close(let)
		synctest.Wait()
		b.must("pod destroy 1")
		equal(t, "story", b.w.story(), "undo-net undo-files undo-ns")
	})
}
