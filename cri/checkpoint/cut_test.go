// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

var errMade = errors.New("made to fail")

// freezer is two containers, a and b, and what is done to them.
type freezer struct {
	mu     sync.Mutex
	frozen map[string]bool
	pause  func(ctx context.Context, id string) error
	resume func(try int, id string) error
	tries  map[string]int
}

func newFreezer() *freezer {
	return &freezer{frozen: map[string]bool{}, tries: map[string]int{}}
}

func (f *freezer) Pause(ctx context.Context, id string) error {
	if f.pause != nil {
		if err := f.pause(ctx, id); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen[id] = true
	return nil
}

func (f *freezer) Resume(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tries[id]++
	if f.resume != nil {
		if err := f.resume(f.tries[id], id); err != nil {
			return err
		}
	}
	f.frozen[id] = false
	return nil
}

func (f *freezer) now() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for id, frozen := range f.frozen {
		if frozen {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (f *freezer) members() []Member { return []Member{{"a", f}, {"b", f}} }

// TestCut has each way in which a cut can end: all are frozen while it is taken, none is
// afterwards.
func TestCut(t *testing.T) {
	for name, c := range map[string]struct {
		pause  func(ctx context.Context, id string) error
		resume func(try int, id string) error
		take   func(ctx context.Context) error
		want   error
		untook bool   // take is not reached
		frozen string // what stays frozen
	}{
		"success":        {},
		"take fails":     {take: func(context.Context) error { return errMade }, want: errMade},
		"take hangs":     {take: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, want: context.DeadlineExceeded},
		"take goes over": {take: func(ctx context.Context) error { <-ctx.Done(); return nil }, want: context.DeadlineExceeded},
		"one is not frozen": {
			pause: func(_ context.Context, id string) error {
				if id == "b" {
					return errMade
				}
				return nil
			}, want: errMade, untook: true,
		},
		"one is frozen too late": {
			pause: func(_ context.Context, id string) error {
				if id == "b" {
					time.Sleep(400 * time.Millisecond)
				}
				return nil
			}, want: context.DeadlineExceeded, untook: true,
		},
		"thawed at the third try": {resume: func(try int, _ string) error {
			if try < 3 {
				return errMade
			}
			return nil
		}},
		"gone meanwhile": {
			resume: func(_ int, id string) error {
				if id == "b" {
					return fmt.Errorf("b: %w", errdefs.ErrNotFound)
				}
				return nil
			}, frozen: "b",
		},
		"not thawed": {
			resume: func(_ int, id string) error {
				if id == "a" {
					return errMade
				}
				return nil
			}, want: ErrFrozen, frozen: "a",
		},
		"nothing works": {
			take:   func(context.Context) error { return errMade },
			resume: func(int, string) error { return errMade }, want: ErrFrozen, frozen: "a b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFreezer()
			f.pause, f.resume = c.pause, c.resume
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			took := false
			err := Cut(ctx, f.members(), func(ctx context.Context) error {
				took = true
				if got := f.now(); got != "a b" {
					t.Errorf("while it is taken %q are frozen", got)
				}
				if c.take != nil {
					return c.take(ctx)
				}
				return nil
			})
			if !errors.Is(err, c.want) || took == c.untook {
				t.Errorf("error %v, want %v; taken: %t", err, c.want, took)
			}
			if got := f.now(); got != c.frozen {
				t.Errorf("afterwards %q are frozen, want %q", got, c.frozen)
			}
		})
	}
}

func TestCutWithoutTime(t *testing.T) {
	f := newFreezer()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Cut(ctx, f.members(), func(context.Context) error { t.Error("taken"); return nil })
	if !errors.Is(err, context.Canceled) || f.now() != "" {
		t.Errorf("error %v, frozen %q", err, f.now())
	}
}

func TestCutThatPanics(t *testing.T) {
	f := newFreezer()
	defer func() {
		if recover() == nil || f.now() != "" {
			t.Errorf("frozen: %q", f.now())
		}
	}()
	_ = Cut(t.Context(), f.members(), func(context.Context) error { panic("made to") })
}
