// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
)

// Hold runs f while nothing moves the subject, which stays where it stands: no climb
// or descent begins before f has returned. It waits, within ctx, for the move in flight.
// A descent with Interrupt ends the context of f, whose error says so; f then has to put
// back what it has begun. f may amend the subject, and must not move it.
//
// Errors: ErrNotFound, ErrBusy for a subject that does not stand whole, the context's,
// and those of f.
func (e *Engine) Hold(ctx context.Context, workflow, id string, f func(context.Context, *View) error) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	s := e.find(workflow, id)
	if s == nil {
		return fmt.Errorf("hold %s %s: %w", workflow, id, ErrNotFound)
	}
	if err := s.take(ctx, e.closing); err != nil {
		return err
	}
	defer s.release()
	v, err := s.standing()
	if err != nil {
		return fmt.Errorf("hold %s %s: %w", workflow, id, err)
	}
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.interruptible(cancel)
	defer s.interruptible(nil)
	return guard(func() error { return f(held, v) })
}

// standing gives the view of a subject that is not moving and not on its way down.
func (s *subject) standing() (*View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r := &s.rec; {
	case s.gone:
		return nil, ErrNotFound
	case s.damage != "":
		return nil, fmt.Errorf("%w: %s", ErrBusy, s.damage)
	case r.Phase != Standing:
		return nil, fmt.Errorf("%w: it is %s: %s", ErrBusy, r.Phase, r.Error)
	}
	return s.rec.view(), nil
}
