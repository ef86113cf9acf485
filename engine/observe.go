// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "context"

// Observer is the one seam for logs, metrics and traces: it is called around
// every flow (Span.Action empty), every action, and every Init and Sweep (Span.ID
// empty), by many goroutines at once. It must call next once, in its own
// goroutine, and return its error; an error of its own fails the action.
type Observer interface {
	Around(ctx context.Context, s Span, next func(context.Context) error) error
}

// Span is what is being observed.
type Span struct {
	Workflow, Flow, ID, Name, Action string
	Step                             int  // of the action, from 0 in the order of this move
	Down                             bool // an undo, or a flow going down
	Rollback                         bool // of a failed climb, or recovery of a crashed one
	Skipped                          bool // a conditional action that does not apply
}
