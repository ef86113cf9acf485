// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"time"
)

// Engine ...
type Engine struct{}

func New(o Options, defs []Definition, cfg map[string]map[string]FlowConfig) (*Engine, error) {
	return nil, errors.ErrUnsupported
}
func OpenBolt(path string) (Journal, error)      { return nil, errors.ErrUnsupported }
func (e *Engine) Boot(ctx context.Context) error { return errors.ErrUnsupported }
func (e *Engine) RunCleanup(ctx context.Context) {}
func (e *Engine) Climb(ctx context.Context, workflow, flow, id string, o ClimbOptions) error {
	return errors.ErrUnsupported
}
func (e *Engine) Descend(ctx context.Context, workflow, flow, id string, o DescendOptions) error {
	return errors.ErrUnsupported
}
func (e *Engine) Amend(ctx context.Context, workflow, id string, values ...Value) error {
	return errors.ErrUnsupported
}
func (e *Engine) Update(ctx context.Context, workflow, id string, f func(*View) ([]Value, error)) error {
	return errors.ErrUnsupported
}
func (e *Engine) Get(workflow, id string) (*View, bool)       { return nil, false }
func (e *Engine) List(workflow string) []*View                { return nil }
func (e *Engine) ByName(workflow, name string) (*View, bool)  { return nil, false }
func (e *Engine) Watch(workflow, id string) <-chan struct{}   { return nil }
func (e *Engine) Flows() []FlowStatus                         { return nil }
func (e *Engine) SetLimit(workflow, flow string, n int) error { return nil }
func (e *Engine) Sweep(ctx context.Context, dryRun bool) ([]Found, error) {
	return nil, errors.ErrUnsupported
}
func (e *Engine) Close(ctx context.Context) error { return nil }
func (e *Engine) Job(ctx context.Context, workflow, flow, id string, fn func(context.Context) error) error {
	return errors.ErrUnsupported
}

// FlowStatus is the state of a flow and its limiter.
type FlowStatus struct {
	Workflow, Flow                                        string
	Steps                                                 [][]string
	Limit, Queue, InFlight, Waiting, Peak, Refused, Stuck int
	Failover                                              bool
}

// Timeline ...
type Timeline struct{}

func NewTimeline(subjects int) *Timeline         { return nil }
func (t *Timeline) Of(id string) ([]Entry, bool) { return nil, false }
func (t *Timeline) IDs() []string                { return nil }
func (t *Timeline) Around(ctx context.Context, s Span, next func(context.Context) error) error {
	return next(ctx)
}

// Entry ...
type Entry struct {
	Span
	Start    time.Time
	Duration time.Duration
	Outcome  string
	Error    string
}
