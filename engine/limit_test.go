// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

func limited(t *testing.T, limit, queue int) *bench {
	t.Helper()
	w, j := newWorld(), newMemory()
	cfg := defaults()
	create := cfg["pod"]["create"]
	create.Concurrent, create.Queue = limit, queue
	cfg["pod"]["create"] = create
	return &bench{Engine: start(t, options(w, j), cfg), t: t, w: w, j: j}
}

func (b *bench) flow(workflow, name string) engine.FlowStatus {
	for _, f := range b.Flows() {
		if f.Workflow == workflow && f.Flow == name {
			return f
		}
	}
	b.t.Fatalf("no flow %s.%s", workflow, name)
	return engine.FlowStatus{}
}

func (b *bench) counters(workflow, flow string) string {
	f := b.flow(workflow, flow)
	return fmt.Sprintf("limit %d in flight %d waiting %d peak %d refused %d", f.Limit, f.InFlight, f.Waiting, f.Peak, f.Refused)
}

func TestFiftyThroughALimitOfTwo(t *testing.T) {
	b := limited(t, 2, 50)
	var now, most atomic.Int32
	b.w.hook["do-net"] = func(ctx) error {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				return nil
			}
		}
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { b.must(fmt.Sprintf("pod create %d", i)) })
	}
	wg.Wait()
	if len(b.List("pod")) != 50 || most.Load() > 2 {
		t.Errorf("%d pods, %d at once", len(b.List("pod")), most.Load())
	}
	if f := b.flow("pod", "create"); f.Peak > 2 || f.InFlight != 0 || f.Waiting != 0 || f.Refused != 0 {
		t.Error(b.counters("pod", "create"))
	}
}

func TestRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, 1, 0)
		g := b.w.gate("do-net", false)
		first := async(func() error { return b.do(t.Context(), "pod create 1") })
		<-g.entered
		err := b.do(t.Context(), "pod create 2")
		isError(t, err, engine.ErrConcurrentFailed)
		equal(t, "text", err.Error(), "create of pod 2: pod.create: 1 in flight of 1, 0 waiting: ConcurrentFailed: too many in flight")
		equal(t, "counters", b.counters("pod", "create"), "limit 1 in flight 1 waiting 0 peak 1 refused 1")
		if _, ok := b.Get("pod", "2"); ok {
			t.Error("the refused is listed")
		}
		close(g.open)
		if err := <-first; err != nil {
			t.Error(err)
		}
		b.must("pod create 2") // its name is free
	})
}

func TestRollbackAndDescentNeedNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, 1, 0)
		b.must("pod create 0")
		g := b.w.gate("do-net", false)
		c, cancel := context.WithCancel(t.Context())
		first := async(func() error { return b.do(c, "pod create 1") })
		<-g.entered
		b.must("pod cleanup 0") // create is full
		if err := b.SetLimit("pod", "destroy", 1); err != nil {
			t.Error(err)
		}
		cancel()
		isError(t, <-first, context.Canceled)
		equal(t, "stand", b.stand("pod", "1"), "gone")
	})
}

func TestDownLimitDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.SetLimit("pod", "destroy", 1); err != nil {
			t.Error(err)
		}
		for i := range 3 {
			b.must(fmt.Sprint("pod create ", i))
		}
		g := b.w.gate("undo-net", true)
		var all []<-chan error
		for i := range 3 {
			all = append(all, async(func() error { return b.do(t.Context(), fmt.Sprint("pod destroy ", i)) }))
		}
		<-g.entered
		synctest.Wait()
		equal(t, "counters", b.counters("pod", "destroy"), "limit 1 in flight 1 waiting 2 peak 1 refused 0")
		close(g.open)
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLimitChangedInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, 1, 5)
		g := b.w.gate("do-net", false)
		var all []<-chan error
		for i := range 5 {
			all = append(all, async(func() error { return b.do(t.Context(), fmt.Sprint("pod create ", i)) }))
			synctest.Wait()
		}
		equal(t, "counters", b.counters("pod", "create"), "limit 1 in flight 1 waiting 4 peak 1 refused 0")
		if err := b.SetLimit("pod", "create", 3); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		equal(t, "raised", b.counters("pod", "create"), "limit 3 in flight 3 waiting 2 peak 3 refused 0")
		if err := b.SetLimit("pod", "create", 1); err != nil {
			t.Error(err)
		}
		equal(t, "lowered", b.counters("pod", "create"), "limit 1 in flight 3 waiting 2 peak 3 refused 0")
		close(g.open)
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		equal(t, "at the end", b.counters("pod", "create"), "limit 1 in flight 0 waiting 0 peak 3 refused 0")
		isError(t, b.SetLimit("pod", "fly", 1), engine.ErrUnknownFlow)
		var c *engine.ConfigError
		if err := b.SetLimit("pod", "create", -1); !errors.As(err, &c) {
			t.Errorf("a negative limit: %v", err)
		}
	})
}

func TestQueueIsFIFOAndEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limited(t, 1, 2)
		g := b.w.gate("do-net", false)
		first := async(func() error { return b.do(t.Context(), "pod create 1") })
		<-g.entered
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		second := async(func() error { return b.do(short, "pod create 2") })
		synctest.Wait()
		third := async(func() error { return b.do(t.Context(), "pod create 3") })
		synctest.Wait()
		isError(t, b.do(t.Context(), "pod create 4"), engine.ErrConcurrentFailed)
		isError(t, <-second, context.DeadlineExceeded)
		pending(t, "the third", third)
		close(g.open)
		if err := errors.Join(<-first, <-third); err != nil {
			t.Error(err)
		}
		b.must("pod create 2") // its name is free
	})
}

// A start that waits for a place must not keep its container from going down.
func TestWaitingForAPlaceDoesNotHoldTheSubject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, j := newWorld(), newMemory()
		cfg := defaults()
		cfg["ctr"]["start"] = engine.FlowConfig{Concurrent: 1, Queue: 5, Failover: true, Steps: [][]string{{"task"}}}
		b := &bench{Engine: start(t, options(w, j), cfg), t: t, w: w, j: j}
		b.must("ctr create 1")
		b.must("ctr create 2")
		g := b.w.gate("do-task", false)
		one := async(func() error { return b.do(t.Context(), "ctr start 1") })
		<-g.entered
		two := async(func() error { return b.do(t.Context(), "ctr start 2") })
		pending(t, "the second", two)
		b.must("ctr remove 2")
		close(g.open)
		if err := <-one; err != nil {
			t.Error(err)
		}
		isError(t, <-two, engine.ErrNotFound)
		equal(t, "counters", b.counters("ctr", "start"), "limit 1 in flight 0 waiting 0 peak 1 refused 0")
	})
}

func TestJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.SetLimit("image", "pull", 1); err != nil {
			t.Fatal(err)
		}
		open := make(chan struct{})
		first := async(func() error {
			return b.Job(t.Context(), "image", "pull", "busybox", func(ctx) error { <-open; return errBoom })
		})
		synctest.Wait()
		none := func(ctx) error { return nil }
		isError(t, b.Job(t.Context(), "image", "pull", "nginx", none), engine.ErrConcurrentFailed)
		close(open)
		isError(t, <-first, errBoom)
		var p *engine.PanicError
		if err := b.Job(t.Context(), "image", "pull", "x", func(ctx) error { panic("p") }); !errors.As(err, &p) {
			t.Errorf("a panic: %v", err)
		}
		isError(t, b.Job(t.Context(), "pod", "create", "x", none), engine.ErrUnknownFlow)
		if b.j.writes != 0 {
			t.Error("a job is journaled")
		}
	})
}
