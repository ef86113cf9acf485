// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
)

// FlowStatus is a flow with the state of its limiter.
type FlowStatus struct {
	Workflow, Flow string
	Steps          [][]string // in the order in which the flow takes them
	Limit          int        // in flight at once; 0 is unlimited
	Queue          int        // how many may wait; down flows let all wait
	InFlight       int
	Waiting        int
	Peak           int // the most that were in flight at once
	Refused        int
	Stuck          int // subjects that stopped on this way down
	Failover       bool
}

// kind is a list of flows of a workflow.
type kind func(*workflow) []*flow

func up(w *workflow) []*flow   { return w.up }
func down(w *workflow) []*flow { return w.down }
func job(w *workflow) []*flow  { return w.jobs }
func all(w *workflow) []*flow  { return slices.Concat(w.up, w.down, w.jobs) }

// lookup finds a flow of a kind. Errors: ErrUnknownFlow.
func (e *Engine) lookup(workflow, name string, k kind) (*workflow, *flow, error) {
	e.mu.RLock()
	w := e.workflows[workflow]
	e.mu.RUnlock()
	if w != nil {
		for _, f := range k(w) {
			if f.name == name {
				return w, f, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("%s.%s: %w", workflow, name, ErrUnknownFlow)
}

// Flows gives the state of every flow, in the order of the definitions.
func (e *Engine) Flows() []FlowStatus {
	stuck := map[*flow]int{}
	for _, s := range e.stuck() {
		stuck[s.w.way(s.snapshot().Goal)]++
	}
	var list []FlowStatus
	for _, w := range e.order {
		for _, f := range all(w) {
			st := FlowStatus{Workflow: w.name, Flow: f.name, Steps: f.stepNames(), Failover: f.failover, Stuck: stuck[f]}
			f.limiter.status(&st)
			list = append(list, st)
		}
	}
	return list
}

// SetLimit changes how many may be in flight; 0 is unlimited. Those in flight
// are let be; those waiting get the new places. Errors: ErrUnknownFlow.
func (e *Engine) SetLimit(workflow, flow string, limit int) error {
	_, f, err := e.lookup(workflow, flow, all)
	if err != nil {
		return err
	}
	if limit < 0 {
		return &ConfigError{Path: f.path() + ".concurrent", Msg: fmt.Sprintf("%d is negative; 0 is unlimited", limit)}
	}
	f.limiter.set(limit)
	return nil
}

// Job runs fn under the limit of a job flow and inside the observers. It is
// not journaled and has no undo. Errors: ErrConcurrentFailed, that of fn.
func (e *Engine) Job(ctx context.Context, workflow, flow, id string, fn func(context.Context) error) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	_, f, err := e.lookup(workflow, flow, job)
	if err != nil {
		return err
	}
	if err := f.limiter.acquire(ctx, e.closing); err != nil {
		return fmt.Errorf("%s of %s %s: %w", flow, workflow, id, err)
	}
	defer f.limiter.release()
	return e.observe(ctx, Span{Workflow: workflow, Flow: flow, ID: id}, fn)
}

// Sweep lets every action remove, or in a dry run list, what no record knows.
// All are asked, those highest on the ladder first; their errors are joined.
func (e *Engine) Sweep(ctx context.Context, dryRun bool) ([]Found, error) {
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	return e.sweep(ctx, dryRun)
}

func (e *Engine) sweep(ctx context.Context, dryRun bool) ([]Found, error) {
	s := NewSweep(dryRun, e.known)
	var failed error
	for _, b := range slices.Backward(e.bounds) {
		sweeper, ok := b.action.(Sweeper)
		if !ok {
			continue
		}
		err := e.observe(ctx, Span{Flow: "sweep", Action: b.name}, func(ctx context.Context) error {
			return sweeper.Sweep(ctx, s)
		})
		if err != nil {
			failed = join(failed, fmt.Errorf("sweep of action %s: %w", b.name, err))
		}
	}
	return s.Found(), failed
}

// known also knows a subject that is only about to climb.
func (e *Engine) known(workflow, id string) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	w := e.workflows[workflow]
	return w != nil && w.subjects[id] != nil
}
