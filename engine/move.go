// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// move is one climb or descent of one subject. Who has it holds the token.
type move struct {
	s        *subject
	flow     string
	down     bool
	rollback bool
	way      *flow  // down: whose order is followed
	cause    string // down: what the record is to say at its end
	ahead    int    // up: steps that the record has and that are not entered yet
	entered  bool   // up: a step was entered
}

func (m *move) span() Span {
	return Span{Workflow: m.s.w.name, Flow: m.flow, ID: m.s.id, Name: m.s.rec.Name, Down: m.down, Rollback: m.rollback}
}

func (m *move) run(action string) *Run {
	return &Run{workflow: m.s.w.name, flow: m.flow, id: m.s.id, slots: subjectSlots{m.s}, action: action}
}

// observe runs body inside all observers. Its outcome is that of body; an
// observer can make it worse (a failure of its own) but not better.
func (e *Engine) observe(ctx context.Context, s Span, body func(context.Context) error) error {
	var once sync.Once
	outcome := errors.New("an observer did not call next")
	next := func(ctx context.Context) error {
		once.Do(func() { outcome = guard(func() error { return body(ctx) }) })
		return outcome
	}
	for i := len(e.opts.Observers) - 1; i >= 0; i-- {
		o, inner := e.opts.Observers[i], next
		next = func(ctx context.Context) error {
			return guard(func() error { return o.Around(ctx, s, inner) })
		}
	}
	if err := next(ctx); err != nil {
		return err
	}
	return outcome
}

// doStep runs the actions of a step side by side, each to its end. The first
// that fails cancels the others.
func (e *Engine) doStep(ctx context.Context, m *move, step int, actions []bound) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var failed []error
	var wg sync.WaitGroup
	for _, b := range actions {
		wg.Go(func() {
			err := errGoexit
			defer func() {
				if err == nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if len(failed) > 0 && errors.Is(err, context.Canceled) {
					return // because of the first
				}
				failed = append(failed, &ActionError{Workflow: m.s.w.name, ID: m.s.id, Action: b.name, Err: err})
				cancel(fmt.Errorf("action %s failed: %w", b.name, context.Canceled))
			}()
			err = e.doAction(ctx, m, step, b)
		})
	}
	wg.Wait()
	return join(failed...)
}

func (e *Engine) doAction(ctx context.Context, m *move, step int, b bound) error {
	r := m.run(b.name)
	r.limit(b.action)
	span := m.span()
	span.Action, span.Step = b.name, step
	var err error
	if c, ok := b.action.(Conditional); ok {
		err = guard(func() error {
			span.Skipped = !c.Applies(r)
			return nil
		})
	}
	return e.observe(ctx, span, func(ctx context.Context) error {
		if err != nil || span.Skipped {
			return err
		}
		return b.action.Do(ctx, r)
	})
}

// undoStep runs the undos of a step side by side and tells which succeeded.
// All are tried. One that goes on after its time is left behind: it fails, and
// is not run again before it has returned.
func (e *Engine) undoStep(ctx context.Context, m *move, step int, actions []string) (undone []string, err error) {
	patience, cancel := context.WithTimeout(ctx, e.opts.UndoTimeout+e.opts.UndoTimeout/2)
	defer cancel()
	outcomes := make([]<-chan error, len(actions))
	for i, name := range actions {
		outcomes[i] = e.startUndo(ctx, m, step, name)
	}
	var failed []error
	for i, name := range actions {
		var err error
		select {
		case err = <-outcomes[i]:
		case <-patience.Done():
			select {
			case err = <-outcomes[i]:
			default:
				m.s.linger(name, outcomes[i])
				err = fmt.Errorf("it has not returned although its time is over: %w", context.DeadlineExceeded)
			}
		}
		if err == nil {
			undone = append(undone, name)
			continue
		}
		failed = append(failed, &ActionError{Workflow: m.s.w.name, ID: m.s.id, Action: name, Down: true, Err: err})
	}
	return undone, join(failed...)
}

func (e *Engine) startUndo(ctx context.Context, m *move, step int, name string) <-chan error {
	outcome := make(chan error, 1)
	if !m.s.returned(name) {
		outcome <- errors.New("the try before has not returned yet")
		return outcome
	}
	span := m.span()
	span.Action, span.Step = name, step
	go func() {
		err := errGoexit
		defer func() { outcome <- err }()
		ctx, cancel := context.WithTimeout(ctx, e.opts.UndoTimeout)
		defer cancel()
		err = e.observe(ctx, span, func(ctx context.Context) error {
			action, err := e.action(name)
			if err != nil {
				return err
			}
			return action.Undo(ctx, m.run(name))
		})
	}()
	return outcome
}

// action finds an action that a record names, also one that is in no flow any more.
func (e *Engine) action(name string) (Action, error) {
	if a, ok := e.actions[name]; ok {
		return a, nil
	}
	if a, ok := e.opts.Lookup(name); ok && a != nil {
		return a, nil
	}
	return nil, errors.New("there is no action of that name any more")
}

// linger remembers an undo that was left behind.
func (s *subject) linger(action string, outcome <-chan error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lingering[action] = outcome
}

// returned says that no undo of the action is still running.
func (s *subject) returned(action string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcome, ok := s.lingering[action]
	if !ok {
		return true
	}
	if len(outcome) == 0 {
		return false
	}
	delete(s.lingering, action)
	return true
}
