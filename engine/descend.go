// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Descend runs a down flow. An unknown id, or a subject already at or below the
// station, is success. A descent in flight to the same or a lower station is
// joined. Otherwise it waits, within ctx, for the move in flight on the same
// subject; a climb in flight goes on unless o.Interrupt is set: then its context
// is cancelled and its rollback waited for.
//
// Once begun the descent is detached from ctx: if ctx ends first Descend
// returns its error and the descent goes on. A subject that was stuck on the way
// to a lower station goes there. Errors: *StuckError, the context's, ErrClosed.
func (e *Engine) Descend(ctx context.Context, workflow, flow, id string, o DescendOptions) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	_, f, err := e.lookup(workflow, flow, down)
	if err == nil {
		err = check(o.Values)
	}
	if err != nil {
		return err
	}
	s := e.find(workflow, id)
	if s == nil {
		return nil
	}
	if o.Interrupt {
		s.wantDown(1)
		defer s.wantDown(-1)
	}
	fl := s.inFlight(f.to)
	if fl == nil {
		if err := s.take(ctx, e.closing); err != nil {
			return fmt.Errorf("%s of %s %s: %w", flow, workflow, id, err)
		}
		if fl, err = e.begin(ctx, f, s, o.Values); err != nil || fl == nil {
			return err
		}
	}
	select {
	case <-fl.done:
		return fl.err
	case <-ctx.Done():
		return fmt.Errorf("%s of %s %s goes on, its caller is gone: %w", flow, workflow, id, context.Cause(ctx))
	}
}

// begin sets the descent off on its own, or gives nil if there is nothing to
// do. It is called with the token and hands it on.
func (e *Engine) begin(ctx context.Context, f *flow, s *subject, values []Value) (*flight, error) {
	goal, needed := s.needs(f.to)
	if !needed {
		defer s.release()
		return nil, e.note(s, values)
	}
	if err := f.limiter.acquire(ctx, e.closing); err != nil {
		s.release()
		return nil, fmt.Errorf("%s of %s %s: %w", f.name, s.w.name, s.id, err)
	}
	m := &move{s: s, flow: f.name, down: true, way: f}
	fl := s.takeOff(goal)
	e.moves.Add(1) // the caller is counted too, so Close has not got past it
	go func() {
		defer e.leave()
		defer f.limiter.release()
		defer s.release()
		e.fly(context.WithoutCancel(ctx), m, fl, values)
	}()
	return fl, nil
}

// needs says where a descent to station has to go, and whether there is
// anything to do. The token is held.
func (s *subject) needs(station string) (goal string, needed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return "", false
	}
	if s.rec.Phase == Stuck {
		return s.w.lower(s.rec.Goal, station), true
	}
	for _, g := range s.rec.Rungs {
		if s.w.above(g.Base, station) {
			return station, true
		}
	}
	return station, s.w.level(s.rec.Station) > s.w.level(station) || station == Ground
}

// note journals values of a descent that had nothing to do.
func (e *Engine) note(s *subject, values []Value) error {
	if len(values) == 0 {
		return nil
	}
	err := e.commit(s, func(r *record) error {
		r.fill(values)
		return nil
	})
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// inFlight gives a descent in flight to station or below it.
func (s *subject) inFlight(station string) *flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flight != nil && s.w.level(s.flight.goal) <= s.w.level(station) {
		return s.flight
	}
	return nil
}

// wantDown counts the descents that want the climb in flight to end.
func (s *subject) wantDown(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interrupt += n
	if s.interrupt > 0 && s.cancel != nil {
		s.cancel(errInterrupted)
	}
}

func (s *subject) takeOff(goal string) *flight {
	fl := &flight{goal: goal, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flight = fl
	return fl
}

// goDown is the one way down, for descents, rollbacks, retries and recovery.
// The token is held.
func (e *Engine) goDown(ctx context.Context, m *move, goal string, values []Value) error {
	fl := m.s.takeOff(goal)
	e.fly(ctx, m, fl, values)
	return fl.err
}

func (e *Engine) fly(ctx context.Context, m *move, fl *flight, values []Value) {
	m.down = true
	called := false
	err := e.observe(ctx, m.span(), func(ctx context.Context) error {
		called = true
		return e.undoSteps(ctx, m, fl.goal, values)
	})
	if !called {
		err = e.stick(m, fl.goal, err)
	}
	m.s.mu.Lock()
	m.s.flight = nil
	m.s.mu.Unlock()
	fl.err = err
	close(fl.done)
}

// undoSteps goes down. The record is written before the first step is entered and after
// arrival. What must be in the journal before anything is undone is that the subject is
// on its way to goal; that a step in between was undone is seen by readers, and if a crash
// loses it the undo runs twice.
func (e *Engine) undoSteps(ctx context.Context, m *move, goal string, values []Value) error {
	for i := 0; ; i++ {
		actions, base := m.s.next(m.way, goal)
		if len(actions) == 0 {
			break
		}
		if i > 0 {
			m.s.lower(base, goal)
		} else if err := e.setOff(m, base, goal, values); err != nil {
			return err
		}
		undone, err := e.undoStep(ctx, m, i, actions)
		m.s.mu.Lock()
		m.s.rec.drop(undone)
		m.s.mu.Unlock()
		if err != nil {
			return e.stick(m, goal, err)
		}
	}
	if err := e.arrive(m, goal); err != nil {
		return e.stick(m, goal, err)
	}
	return nil
}

// setOff journals that the subject is on its way down. If it cannot, a subject that stood
// stands as before; a rollback is stuck; one that was on this way before goes on.
func (e *Engine) setOff(m *move, base, goal string, values []Value) error {
	before := m.s.snapshot()
	err := e.commit(m.s, func(r *record) error {
		r.descend(m.s.w, base, goal)
		if m.cause != "" { // a crash must not lose it
			r.Cause = m.cause
		}
		r.fill(values)
		return nil
	})
	switch {
	case err == nil || before.Phase != Standing && before.Goal == goal:
		return nil
	case m.rollback:
		return e.stick(m, goal, err)
	}
	m.s.revert(before)
	return fmt.Errorf("%s of %s %s: %w", m.flow, m.s.w.name, m.s.id, err)
}

// lower shows readers how far down the subject is.
func (s *subject) lower(base, goal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.descend(s.w, base, goal)
	s.rec.Changed = time.Now().UTC()
	s.publish()
}

// descend marks the record as on the way to goal, about to undo a step that
// stands on base. The station never falls below goal.
func (r *record) descend(w *workflow, base, goal string) {
	r.Phase, r.Goal = Descending, goal
	if w.level(base) < w.level(goal) {
		base = goal
	}
	r.Station = w.lower(r.Station, base)
}

func (s *subject) next(way *flow, goal string) (actions []string, base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.next(way, s.rec.Rungs, goal)
}

func (s *subject) snapshot() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// revert undoes in memory what could not be journaled; the values stay.
func (s *subject) revert(before record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Phase, s.rec.Goal, s.rec.Station = before.Phase, before.Goal, before.Station
	s.publish()
}

// arrive ends a descent: at the ground the record goes, above it stands.
func (e *Engine) arrive(m *move, goal string) error {
	if goal == Ground {
		return e.remove(m.s)
	}
	return e.commit(m.s, func(r *record) error {
		if m.cause != "" || r.Attempts == 0 { // one that was stuck keeps its cause
			r.Cause = m.cause
		}
		r.Phase, r.Station, r.Goal = Standing, goal, goal
		r.Error, r.Attempts, r.Retry, r.Since = "", 0, time.Time{}, time.Time{}
		return nil
	})
}

// stick stops a descent where it is.
func (e *Engine) stick(m *move, goal string, cause error) error {
	err := e.commit(m.s, func(r *record) error {
		if m.cause != "" {
			r.Cause = m.cause
		}
		r.Phase, r.Goal, r.Error = Stuck, goal, cause.Error()
		now := time.Now() // with its monotonic reading: neither must follow a clock that is set
		r.Retry = now.Add(e.backoff(r.Attempts))
		r.Attempts++
		if r.Since.IsZero() {
			r.Since = now
		}
		return nil
	})
	select {
	case e.kick <- struct{}{}:
	default:
	}
	return &StuckError{Workflow: m.s.w.name, ID: m.s.id, Err: join(cause, err)}
}

// backoff is the time to the next try: doubled for each that failed, and up to
// a quarter less, so that many stuck at once do not come back at once.
func (e *Engine) backoff(attempts int) time.Duration {
	d := e.opts.Backoff.Min
	for range attempts {
		if d >= e.opts.Backoff.Max/2 {
			d = e.opts.Backoff.Max
			break
		}
		d *= 2
	}
	return d - rand.N(d/4+1)
}
