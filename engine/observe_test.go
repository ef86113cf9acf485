// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// observer is a function that observes.
type observer func(c ctx, s engine.Span, next func(ctx) error) error

func (o observer) Around(c ctx, s engine.Span, next func(ctx) error) error { return o(c, s, next) }

func observed(t *testing.T, list ...engine.Observer) *bench {
	t.Helper()
	w, j := newWorld(), newMemory()
	o := options(w, j)
	o.Observers = list
	return &bench{Engine: start(t, o, defaults()), t: t, w: w, j: j}
}

func TestObserversAreNested(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	note := func(name string) engine.Observer {
		return observer(func(c ctx, s engine.Span, next func(ctx) error) error {
			say := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				if s.Workflow == "ctr" {
					lines = append(lines, what+name+" "+s.Flow+"/"+s.Action)
				}
			}
			say("+")
			defer say("-")
			return next(c)
		})
	}
	b := observed(t, note("a"), note("b"))
	b.must("ctr create 1")
	b.must("ctr start 1")
	equal(t, "order", strings.Join(lines[len(lines)-8:], ", "),
		"+a start/, +b start/, +a start/task, +b start/task, -b start/task, -a start/task, -b start/, -a start/")
}

func TestObserverThatMisbehaves(t *testing.T) {
	bad := map[string]observer{
		"panics before":  func(ctx, engine.Span, func(ctx) error) error { panic("o") },
		"panics after":   func(c ctx, _ engine.Span, next func(ctx) error) error { _ = next(c); panic("o") },
		"calls not":      func(ctx, engine.Span, func(ctx) error) error { return nil },
		"calls twice":    func(c ctx, _ engine.Span, next func(ctx) error) error { return errors.Join(next(c), next(c)) },
		"swallows":       func(c ctx, _ engine.Span, next func(ctx) error) error { _ = next(c); return nil },
		"injects before": func(ctx, engine.Span, func(ctx) error) error { return errBoom },
	}
	fails := map[string]bool{"panics before": true, "panics after": true, "calls not": true, "injects before": true}
	for name, o := range bad {
		for _, at := range []string{"create/", "create/net"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				b := observed(t, observer(func(c ctx, s engine.Span, next func(ctx) error) error {
					if s.Flow+"/"+s.Action == at && !s.Down {
						return o(c, s, next)
					}
					return next(c)
				}))
				err := b.do(t.Context(), "pod create 1")
				if fails[name] != (err != nil) {
					t.Errorf("error %v", err)
				}
				if err != nil && (len(b.w.left()) > 0 || b.stand("pod", "1") != "gone") {
					t.Errorf("left: %v, %s", b.w.left(), b.stand("pod", "1"))
				}
				if !fails[name] {
					equal(t, "each once", b.w.story(), "do-files do-ns do-net do-shim")
				}
			})
		}
	}
}

func TestObserverThatPanicsGoingDown(t *testing.T) {
	broken := true
	b := observed(t, observer(func(c ctx, s engine.Span, next func(ctx) error) error {
		if s.Down && s.Action == "" && broken {
			panic("o")
		}
		return next(c)
	}))
	b.w.set("do-net", errBoom)
	isError(t, b.do(t.Context(), "pod create 1"), errBoom)
	equal(t, "not forgotten", b.stand("pod", "1"), `stuck at ""`)
	broken = false
	b.must("pod destroy 1")
	equal(t, "stand", b.stand("pod", "1"), "gone")
}

func TestActionThatEndsItsGoroutine(t *testing.T) {
	b := newBench(t)
	b.w.hook["do-net"] = func(ctx) error { runtime.Goexit(); return nil }
	if err := b.do(t.Context(), "pod create 1"); err == nil {
		t.Error("no error")
	}
	equal(t, "stand", b.stand("pod", "1"), "gone")
}

func TestTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl := engine.NewTimeline(2)
		b := observed(t, tl)
		b.w.skip["files"] = true
		b.w.hook["do-net"] = func(ctx) error { time.Sleep(time.Second); return nil }
		b.w.hook["do-shim"] = func(c ctx) error { time.Sleep(time.Second); return errBoom }
		done := async(func() error { return b.do(t.Context(), "pod create 1") })
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		list, _ := tl.Of("1")
		last := list[len(list)-1]
		equal(t, "while running", fmt.Sprint(last.Action, " ", last.Outcome, " ", last.Duration), "shim running 500ms")
		isError(t, <-done, errBoom)
		list, ok := tl.Of("1")
		if !ok {
			t.Fatal("it is forgotten")
		}
		var lines []string
		for _, entry := range list {
			line := fmt.Sprintf("%s/%s down=%v rollback=%v %s %v", entry.Flow, entry.Action, entry.Down, entry.Rollback, entry.Outcome, entry.Duration)
			lines = append(lines, strings.ReplaceAll(strings.ReplaceAll(line, "=true", ""), "=false", "-"))
		}
		slices.Sort(lines[1:3]) // side by side
		slices.Sort(lines[8:])
		equal(t, "timeline", strings.Join(lines, "\n"), strings.Join([]string{
			"create/ down- rollback- failed 2s",
			"create/files down- rollback- skipped 0s",
			"create/ns down- rollback- ok 0s",
			"create/net down- rollback- ok 1s",
			"create/shim down- rollback- failed 1s",
			"create/ down rollback ok 0s",
			"create/shim down rollback ok 0s",
			"create/net down rollback ok 0s",
			"create/files down rollback ok 0s",
			"create/ns down rollback ok 0s",
		}, "\n"))
		b.must("ctr create 2")
		c, cancel := context.WithCancel(t.Context())
		b.w.hook["do-rootfs"] = func(c ctx) error { cancel(); return c.Err() }
		isError(t, b.do(c, "ctr create 3"), context.Canceled)
		equal(t, "the newest two", strings.Join(tl.IDs(), " "), "3 2")
		list, _ = tl.Of("3")
		equal(t, "outcome", list[0].Outcome, engine.OutcomeCancelled)
		if _, ok := tl.Of("1"); ok {
			t.Error("the oldest is kept")
		}
	})
}

func TestCleanupRetriesWithBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		c, stop := context.WithCancel(t.Context())
		cleanup := async(func() error { b.RunCleanup(c); return nil })
		b.must("pod create 1")
		b.must("pod create 2")
		b.w.set("undo-net", errBoom)
		isError(t, b.do(t.Context(), "pod destroy 1"), errBoom)
		var waits []time.Duration
		for range 12 {
			synctest.Wait()
			v, _ := b.Get("pod", "1")
			waits = append(waits, time.Until(v.Retry))
			time.Sleep(time.Until(v.Retry))
		}
		synctest.Wait()
		v, _ := b.Get("pod", "1")
		if v.Attempts != 13 || v.Phase != engine.Stuck {
			t.Errorf("%d attempts, %s", v.Attempts, v.Phase)
		}
		for i, d := range waits {
			full := min(time.Second<<i, 5*time.Minute)
			if d > full || d < full*3/4-time.Millisecond {
				t.Errorf("wait %d is %v, want up to %v", i, d, full)
			}
		}
		if f := b.flow("pod", "destroy"); f.Stuck != 1 {
			t.Errorf("%d stuck", f.Stuck)
		}
		b.w.set("undo-net", nil)
		time.Sleep(10 * time.Minute)
		equal(t, "stand", b.stand("pod", "1"), `standing at "reserved"`)
		equal(t, "the other", b.stand("pod", "2"), `standing at "ready"`)
		stop()
		if err := <-cleanup; err != nil {
			t.Error(err)
		}
	})
}

func TestCleanupGoesOnAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, j := newWorld(), newMemory()
		e := boot(t, w, j)
		w.set("do-net", errBoom)
		w.set("undo-net", errBoom)
		isError(t, (&bench{Engine: e, t: t, w: w}).do(t.Context(), "pod create 1"), errBoom)
		closeEngine(t, e)
		w.set("undo-net", nil)
		e = start(t, options(w, j), defaults())
		c, stop := context.WithCancel(t.Context())
		cleanup := async(func() error { e.RunCleanup(c); return nil })
		synctest.Wait()
		equal(t, "stand", standing(e, "pod", "1"), "gone")
		if left := w.left(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		stop()
		if err := <-cleanup; err != nil {
			t.Error(err)
		}
	})
}

// sweepAct finds things of the world without a record.
type sweepAct struct {
	act
	inits int
}

func (a *sweepAct) Init(ctx) error { a.inits++; return a.w.fail["init"] }

func (a *sweepAct) Sweep(_ ctx, s *engine.Sweep) error {
	for _, made := range a.w.left() {
		action, id, _ := strings.Cut(made, " ")
		if action == a.name && !s.Known("pod", id) {
			s.Remove("file", id, func() error {
				a.w.mu.Lock()
				defer a.w.mu.Unlock()
				delete(a.w.made, made)
				return a.w.fail["sweep"]
			})
		}
	}
	return nil
}

func TestInitAndSweep(t *testing.T) {
	w, j := newWorld(), newMemory()
	files := &sweepAct{act: act{w, "files"}}
	o := options(w, j)
	o.Lookup = func(name string) (engine.Action, bool) {
		if name == "files" {
			return files, true
		}
		return w.lookup(name)
	}
	w.made["files stray"] = true
	b := &bench{Engine: start(t, o, defaults()), t: t, w: w, j: j}
	if left := w.left(); len(left) > 0 || files.inits != 1 {
		t.Errorf("left by boot: %v, %d inits", left, files.inits)
	}
	b.must("pod create 1")
	w.mu.Lock()
	w.made["files stray"] = true
	w.mu.Unlock()
	found, err := b.Sweep(t.Context(), true)
	if err != nil || len(found) != 1 || found[0] != (engine.Found{Kind: "file", Name: "stray"}) || !w.made["files stray"] {
		t.Errorf("dry run: %v %v", found, err)
	}
	w.set("sweep", errBoom)
	found, err = b.Sweep(t.Context(), false)
	if err != nil || len(found) != 1 || found[0].Error != "boom" || !w.made["files 1"] {
		t.Errorf("sweep: %v %v", found, err)
	}

	w.set("init", errBoom)
	e, err := engine.New(o, []engine.Definition{podDef}, config{"pod": defaults()["pod"]})
	if err != nil {
		t.Fatal(err)
	}
	isError(t, e.Boot(t.Context()), errBoom)
	closeEngine(t, e)
}

func TestRunsReadOnlyWhatIsDeclared(t *testing.T) {
	w := newWorld()
	shim, _ := w.lookup("shim")
	r, err := engine.NewRun(shim, "pod", "create", "1", request.With("please"), exit.With(3))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := exit.Get(r); err == nil || !strings.Contains(err.Error(), "does not declare it in Needs") {
		t.Errorf("read: %v", err)
	}
	if err := address.Set(r, "x"); err == nil || !strings.Contains(err.Error(), "does not declare it in Fills") {
		t.Errorf("filled: %v", err)
	}
	if v, err := request.Need(r); v != "please" || err != nil {
		t.Errorf("%q %v", v, err)
	}
	net, _ := w.lookup("net")
	r, err = engine.NewRun(net, "pod", "create", "1")
	if err != nil || address.Set(r, "x") != nil || len(r.Values()) != 1 {
		t.Errorf("a filler: %v, %v", err, r.Values())
	}
	if _, err := engine.NewRun(nil, "pod", "create", "1", unencodable.With(nil)); err == nil {
		t.Error("a value that is no JSON was taken")
	}
	defer func() {
		if recover() == nil {
			t.Error("a slot made twice")
		}
	}()
	engine.NewSlot[int]("test.exit")
}
