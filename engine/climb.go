// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Climb runs an up flow.
//
// For the first flow of a ladder the subject must not exist (ErrExists) and
// o.Name must be free (*NameTakenError). While the holder of the name or id is
// still climbing, on the way down or being rolled back, Climb waits for the end
// of that, within ctx, and then decides. For the flows above, the subject must
// stand at the station where the flow begins (ErrNotFound, ErrBusy).
//
// A flow at its limit is refused with ErrConcurrentFailed.
//
// When a climb fails, everything the flow has entered is undone before its
// error is returned (unless failover is off), on a context that the caller
// cannot cancel. If the undoing gets stuck the error has a *StuckError too. If
// ctx ends while a step runs, the actions see it; after the last step has
// succeeded the climb is finished whatever ctx does.
func (e *Engine) Climb(ctx context.Context, workflow, flow, id string, o ClimbOptions) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	w, f, err := e.lookup(workflow, flow, up)
	if err != nil {
		return err
	}
	if err := admissible(w, f, id, o); err != nil {
		return fmt.Errorf("%s of %s %s: %w", flow, workflow, id, err)
	}
	s, err := e.admit(ctx, f, id, o)
	if err != nil {
		return fmt.Errorf("%s of %s %s: %w", flow, workflow, id, err)
	}
	defer f.limiter.release()
	defer s.release()
	return e.climb(ctx, f, s, o)
}

// admissible checks what can be checked before anything is taken.
func admissible(w *workflow, f *flow, id string, o ClimbOptions) error {
	if id == "" {
		return errors.New("the id is empty")
	}
	if err := check(o.Values); err != nil {
		return err
	}
	if f.base != Ground {
		return nil
	}
	for _, k := range w.given {
		if !slices.ContainsFunc(o.Values, func(v Value) bool { return v.key == k }) {
			return fmt.Errorf("slot %s must be given: %w", k, ErrUnset)
		}
	}
	return nil
}

// admit gives the subject with its token taken, and a place of the flow.
func (e *Engine) admit(ctx context.Context, f *flow, id string, o ClimbOptions) (*subject, error) {
	if f.base != Ground {
		return e.admitHigher(ctx, f, id, o)
	}
	s, err := e.reserve(ctx, f, id, o)
	if err != nil {
		return nil, err
	}
	if err := f.limiter.acquire(ctx, e.closing); err != nil {
		// It was never seen, so there is no record whose removal could fail.
		return nil, errors.Join(err, e.remove(s))
	}
	return s, nil
}

// admitHigher never waits for a place with the token in hand: a descent of this
// subject must not wait for other subjects' climbs.
func (e *Engine) admitHigher(ctx context.Context, f *flow, id string, o ClimbOptions) (*subject, error) {
	s := e.find(f.w.name, id)
	if s == nil {
		return nil, ErrNotFound
	}
	for {
		if err := s.take(ctx, e.closing); err != nil {
			return nil, err
		}
		if err := s.admits(f, o); err != nil {
			s.release()
			return nil, err
		}
		if f.limiter.try() {
			return s, nil
		}
		s.release()
		if err := f.limiter.acquire(ctx, e.closing); err != nil {
			return nil, err
		}
		if s.tryTake() {
			if err := s.admits(f, o); err != nil {
				s.release()
				f.limiter.release()
				return nil, err
			}
			return s, nil
		}
		f.limiter.release()
	}
}

// admits says whether the subject stands whole where f begins, and its caller wants
// it as it is. The token is held.
func (s *subject) admits(f *flow, o ClimbOptions) error {
	if err := s.ready(f); err != nil || o.Admit == nil {
		return err
	}
	return guard(func() error { return o.Admit(s.state.Load().view) })
}

// ready says whether the subject stands whole where f begins.
func (s *subject) ready(f *flow) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r := &s.rec; {
	case s.gone:
		return ErrNotFound
	case s.damage != "":
		return fmt.Errorf("%w: %s", ErrBusy, s.damage)
	case r.Phase == Stuck:
		return fmt.Errorf("%w: it is stuck on the way down: %s", ErrBusy, r.Error)
	case r.Phase != Standing || r.Station != f.base:
		return fmt.Errorf("%w: it is %s at %q, not at %q", ErrBusy, r.Phase, r.Station, f.base)
	}
	for _, g := range s.rec.Rungs {
		if s.w.above(g.Base, f.base) {
			return fmt.Errorf("%w: it was left half-made: %s", ErrBusy, s.rec.Cause)
		}
	}
	return nil
}

// reserve takes id and name for a new subject, waiting for a holder on its way.
func (e *Engine) reserve(ctx context.Context, f *flow, id string, o ClimbOptions) (*subject, error) {
	now := time.Now().UTC()
	s := e.newSubject(f.w, record{Workflow: f.w.name, ID: id, Name: o.Name, Phase: Climbing, Created: now})
	s.rec.fill(o.Values)
	s.token <- struct{}{}
	for {
		changed, err := e.tryReserve(s)
		if err != nil {
			return nil, err
		}
		if changed == nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the name %q, whose holder is on its way: %w", o.Name, context.Cause(ctx))
		case <-e.closing:
			return nil, ErrClosed
		}
	}
}

// tryReserve takes id and name, or gives a channel to wait on if the holder is
// on its way, or says why that will not help.
func (e *Engine) tryReserve(s *subject) (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w, name := s.w, s.rec.Name
	holder := w.subjects[s.id]
	if holder == nil && name != "" {
		holder = w.names[name]
	}
	if holder == nil {
		w.subjects[s.id] = s
		if name != "" {
			w.names[name] = s
		}
		return nil, nil
	}
	st := holder.state.Load()
	if st.view == nil || st.view.Phase == Climbing || st.view.Phase == Descending {
		return st.changed, nil
	}
	if holder.id == s.id {
		return nil, ErrExists
	}
	taken := &NameTakenError{Workflow: w.name, Name: name, ID: holder.id}
	if st.view.Phase == Stuck || st.view.Damaged {
		taken.Stuck = st.view.Error
	}
	return nil, taken
}

// climb runs the flow and undoes it if it fails.
func (e *Engine) climb(ctx context.Context, f *flow, s *subject, o ClimbOptions) error {
	climbing, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.interruptible(cancel)
	m := &move{s: s, flow: f.name}
	err := e.observe(climbing, m.span(), func(ctx context.Context) error {
		return e.doSteps(ctx, m, f, o)
	})
	s.interruptible(nil)
	if err == nil {
		return nil
	}
	s.forgetAhead(m)
	var failed *ActionError
	if !errors.As(err, &failed) {
		err = fmt.Errorf("%s of %s %s: %w", f.name, s.w.name, s.id, err)
	}
	if cause := context.Cause(climbing); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	failover := f.failover
	if o.Failover != nil {
		failover = *o.Failover
	}
	if !failover && s.state.Load().view != nil {
		return e.abandon(s, f, err)
	}
	back := &move{s: s, flow: f.name, down: true, rollback: true, way: s.w.way(f.base)}
	if m.entered {
		back.cause = err.Error()
	}
	if stuck := e.goDown(context.WithoutCancel(ctx), back, f.base, nil); stuck != nil {
		return fmt.Errorf("%w; rollback: %w", err, stuck)
	}
	return err
}

// doSteps goes up. The record is written twice: before the first step is entered,
// with all steps that may be entered, and after arrival.
func (e *Engine) doSteps(ctx context.Context, m *move, f *flow, o ClimbOptions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := e.commit(m.s, func(r *record) error {
		r.unset(f.fills)
		r.fill(o.Values)
		r.Phase, r.Goal = Climbing, f.base
		r.Error, r.Cause = "", ""
		m.ahead = len(f.steps)
		r.Rungs = append(slices.Clip(r.Rungs), f.rungs()...)
		return nil
	})
	if err != nil {
		return err
	}
	for i, step := range f.steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.ahead--
		m.entered = true
		if err := e.doStep(ctx, m, i, step); err != nil {
			return err
		}
	}
	return e.commit(m.s, func(r *record) error {
		r.Phase, r.Station, r.Goal = Standing, f.to, f.to
		return nil
	})
}

// forgetAhead takes the steps that a failed climb has not entered off the record, so that
// its rollback has no more to undo than that. The journal learns of it with the next write.
func (s *subject) forgetAhead(m *move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.Rungs = slices.Clone(s.rec.Rungs[:len(s.rec.Rungs)-m.ahead])
}

// abandon leaves a failed climb as it is, for the operator to look at.
func (e *Engine) abandon(s *subject, f *flow, cause error) error {
	err := e.commit(s, func(r *record) error {
		r.Phase, r.Station, r.Goal, r.Cause = Standing, f.base, f.base, cause.Error()
		return nil
	})
	return join(cause, err)
}

// interruptible lets descents cancel the climb in flight; nil ends that.
func (s *subject) interruptible(cancel context.CancelCauseFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
	if cancel != nil && s.interrupt > 0 {
		cancel(errInterrupted)
	}
}
