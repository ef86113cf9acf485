// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "context"

// Action is one reversible unit of work on a subject (a pod or a container).
//
// Do and Undo are one thing and live in one file. Undo must be idempotent:
// "nothing there" is success. It must find its resource from Run.ID alone,
// since it also runs after a Do that failed half-way, that was never entered,
// or whose result a crash lost. A slot may be read in Undo as a hint only.
//
// The engine calls Do at most once per climb. It calls Undo on a context the
// caller of the flow cannot cancel, bounded by Options.UndoTimeout.
type Action interface {
	Do(ctx context.Context, r *Run) error
	Undo(ctx context.Context, r *Run) error
}

// Needer is implemented by an action whose Do reads slots. Each must be given
// by the workflow (Definition.Given) or filled by an earlier step; start-up
// refuses anything else, and Run refuses to read an undeclared slot in Do.
type Needer interface{ Needs() []Key }

// Filler is implemented by an action whose Do fills a slot (one each).
type Filler interface{ Fills() Key }

// Initializer is implemented by an action that prepares itself once per boot,
// before recovery.
type Initializer interface {
	Init(ctx context.Context) error
}

// Sweeper is implemented by an action that can find what no record knows.
type Sweeper interface {
	Sweep(ctx context.Context, s *Sweep) error
}

// Conditional is implemented by an action that is only for some subjects. An
// action that does not apply is observed as skipped; its Undo is still called
// on the way down, since undoing nothing is success.
type Conditional interface{ Applies(r *Run) bool }
