// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package assembly

import (
	"context"

	"github.com/sandflow-cri/sandflow/engine"
)

type skipKey struct{}

// Skipping gives a context in which undos do nothing: mutations for tests, which must notice.
func Skipping(ctx context.Context) context.Context {
	return context.WithValue(ctx, skipKey{}, true)
}

// skippable lets the undo of an action be skipped. An observer cannot: the engine does not
// believe one that does not call the action.
func skippable(a engine.Action) engine.Action {
	s := skip{a}
	if f, ok := a.(engine.Filler); ok {
		return fillingSkip{s, f}
	}
	return s
}

// skip has all that an action may have; what it does not have does nothing.
type skip struct{ engine.Action }

type fillingSkip struct {
	skip
	engine.Filler
}

func (s skip) Undo(ctx context.Context, r *engine.Run) error {
	if ctx.Value(skipKey{}) != nil {
		return nil
	}
	return s.Action.Undo(ctx, r)
}

func (s skip) Needs() []engine.Key {
	if n, ok := s.Action.(engine.Needer); ok {
		return n.Needs()
	}
	return nil
}

func (s skip) Init(ctx context.Context) error {
	if i, ok := s.Action.(engine.Initializer); ok {
		return i.Init(ctx)
	}
	return nil
}

func (s skip) Sweep(ctx context.Context, sweep *engine.Sweep) error {
	if w, ok := s.Action.(engine.Sweeper); ok {
		return w.Sweep(ctx, sweep)
	}
	return nil
}

func (s skip) Applies(r *engine.Run) bool {
	if c, ok := s.Action.(engine.Conditional); ok {
		return c.Applies(r)
	}
	return true
}
