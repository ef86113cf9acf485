// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// events reads what a subscription has waiting, without waiting for more.
func events(t *testing.T, s *engine.Subscription) []engine.Event {
	t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	var all []engine.Event
	for {
		e, err := s.Next(ended)
		if errors.Is(err, context.Canceled) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
}

func told(all []engine.Event) string {
	var words []string
	for _, e := range all {
		if e.View == nil {
			words = append(words, e.ID+":gone")
			continue
		}
		words = append(words, fmt.Sprintf("%s:%s@%s", e.ID, e.View.Phase, e.View.Station))
	}
	return strings.Join(words, " ")
}

func TestSubscriptionTellsEveryChange(t *testing.T) {
	b := newBench(t)
	b.must("ctr create c0")
	s, views := b.Subscribe(100)
	defer s.Close()
	if len(views) != 1 || views[0].ID != "c0" || views[0].Station != "created" {
		t.Fatalf("the views at the beginning are %v", views)
	}
	b.must("ctr create c1")
	b.must("ctr start c1")
	if err := b.Amend(t.Context(), "ctr", "c1", exit.With(7)); err != nil {
		t.Fatal(err)
	}
	b.must("ctr stop c1")
	b.must("ctr remove c1")
	all := events(t, s)
	equal(t, "the events", told(all), strings.Join([]string{
		"c1:climbing@", "c1:standing@created",
		"c1:climbing@created", "c1:standing@running",
		"c1:standing@running",                          // the exit
		"c1:descending@created", "c1:standing@created", // stop
		"c1:descending@", "c1:descending@", "c1:gone",
	}, " "))
	for i, e := range all {
		if i > 0 && !e.At.After(all[i-1].At) {
			t.Errorf("event %d is at %v, the one before at %v", i, e.At, all[i-1].At)
		}
		if e.View == nil {
			continue
		}
		if _, ok, err := exit.Get(e.View); err != nil || ok != (i >= 4) {
			t.Errorf("event %d has an exit: %v, %v", i, ok, err)
		}
	}
}

// What never began to climb was never seen.
func TestSubscriptionIsNotToldOfTheUnseen(t *testing.T) {
	b := newBench(t)
	s, _ := b.Subscribe(10)
	defer s.Close()
	b.must("ctr create c1")
	if err := b.Climb(t.Context(), "ctr", "create", "c1", given("")); !errors.Is(err, engine.ErrExists) {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Climb(cancelled, "ctr", "create", "c2", given("")); err == nil {
		t.Fatal("a climb of a caller who is gone has succeeded")
	}
	equal(t, "the events", told(events(t, s)), "c1:climbing@ c1:standing@created")
}

func TestSlowSubscriberIsToldSo(t *testing.T) {
	b := newBench(t)
	slow, _ := b.Subscribe(1)
	quick, _ := b.Subscribe(100)
	defer slow.Close()
	defer quick.Close()
	b.must("ctr create c1") // two events
	if _, err := slow.Next(t.Context()); !errors.Is(err, engine.ErrOverflow) {
		t.Errorf("the slow one gets %v, want ErrOverflow", err)
	}
	if got := len(events(t, quick)); got != 2 {
		t.Errorf("the quick one gets %d events, want 2", got)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	b := newBench(t)
	for _, tt := range []struct {
		name string
		end  func(s *engine.Subscription, cancel context.CancelFunc)
		want error
	}{
		{"the caller", func(_ *engine.Subscription, cancel context.CancelFunc) { cancel() }, context.Canceled},
		{"the subscription", func(s *engine.Subscription, _ context.CancelFunc) { s.Close() }, engine.ErrClosed},
		{"the engine", func(*engine.Subscription, context.CancelFunc) { _ = b.Close(context.Background()) }, engine.ErrClosed},
	} {
		s, _ := b.Subscribe(10)
		called, cancel := context.WithCancel(t.Context())
		got := make(chan error)
		go func() {
			_, err := s.Next(called)
			got <- err
		}()
		tt.end(s, cancel)
		if err := <-got; !errors.Is(err, tt.want) {
			t.Errorf("%s ends: %v, want %v", tt.name, err, tt.want)
		}
		cancel()
		s.Close()
	}
}

// Whoever subscribes in the middle of it all knows, from the views and the events,
// exactly what is there in the end; and the events of each subject are in order.
func TestSubscriptionHasNoGap(t *testing.T) {
	b := newBench(t)
	stop := make(chan struct{})
	var movers sync.WaitGroup
	for i := range 8 {
		movers.Go(func() {
			for n := 0; ; n++ {
				id := fmt.Sprintf("m%d-%d", i, n)
				err := b.do(t.Context(), "ctr create "+id)
				if err == nil && n%2 == 0 {
					err = b.do(t.Context(), "ctr remove "+id)
				}
				if err != nil {
					t.Error(err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	type reader struct {
		s     *engine.Subscription
		views map[string]*engine.View
	}
	var readers []reader
	for range 20 {
		s, views := b.Subscribe(1 << 20)
		r := reader{s, map[string]*engine.View{}}
		for _, v := range views {
			r.views[v.ID] = v
		}
		readers = append(readers, r)
		time.Sleep(time.Millisecond) // spreads them; nothing depends on it
	}
	close(stop)
	movers.Wait()
	want := b.List("ctr")
	for n, r := range readers {
		for _, e := range events(t, r.s) {
			if e.View == nil {
				delete(r.views, e.ID)
				continue
			}
			if old := r.views[e.ID]; old != nil && e.View.Changed.Before(old.Changed) {
				t.Fatalf("reader %d: %s goes back in time", n, e.ID)
			}
			r.views[e.ID] = e.View
		}
		if len(r.views) != len(want) {
			t.Errorf("reader %d knows of %d, there are %d", n, len(r.views), len(want))
		}
		for _, v := range want {
			if r.views[v.ID] != v {
				t.Errorf("reader %d has not the last view of %s", n, v.ID)
			}
		}
		r.s.Close()
	}
}
