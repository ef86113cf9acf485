// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// errInterrupted is the cause of a climb's end when a descent wanted it.
var errInterrupted = fmt.Errorf("interrupted by a descent: %w", context.Canceled)

// subject is one record in memory.
//
// Locks: token serialises the moves and is held across actions; mu guards the
// fields below it and is held for no longer than it takes to put a write in the
// journal's queue, so writes of one subject are queued in the order of its
// changes. Neither is taken with Engine.mu held. Reading state takes no lock.
type subject struct {
	w     *workflow
	feed  *feed
	id    string
	token chan struct{}
	state atomic.Pointer[state]

	mu        sync.Mutex
	rec       record
	damage    string // why the record could not be read; it is then never written
	gone      bool   // its removal is in the journal's queue, or done
	flight    *flight
	cancel    context.CancelCauseFunc // of the climb in flight
	interrupt int                     // descents that want no climb to go on
	lingering map[string]<-chan error // undos that outlived their time
}

// state is what readers see. view is nil for a subject that has not begun to
// climb or is gone.
type state struct {
	view    *View
	changed chan struct{}
}

// flight is a descent in flight that others may join.
type flight struct {
	goal string
	done chan struct{}
	err  error // after done
}

func (e *Engine) newSubject(w *workflow, rec record) *subject {
	s := &subject{w: w, feed: &e.feed, id: rec.ID, rec: rec, token: make(chan struct{}, 1), lingering: map[string]<-chan error{}}
	s.state.Store(&state{changed: make(chan struct{})})
	return s
}

// publish shows the record to readers. The caller holds mu.
func (s *subject) publish() {
	v := s.rec.view()
	if s.damage != "" {
		v.Damaged = true
		if v.Error == "" {
			v.Error = s.damage
		}
	}
	s.feed.show(s, v)
}

// take waits for the token.
func (s *subject) take(ctx context.Context, closing <-chan struct{}) error {
	select {
	case s.token <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the move in flight on %s %s: %w", s.w.name, s.id, context.Cause(ctx))
	case <-closing:
		return ErrClosed
	}
}

func (s *subject) tryTake() bool {
	select {
	case s.token <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s *subject) release() { <-s.token }

// commit changes the record and returns when the change is durable. Readers may
// see it a little before. If the journal fails the change stays in memory; what
// it means for the move is the caller's to decide.
func (e *Engine) commit(s *subject, change func(*record) error) error {
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		return fmt.Errorf("%s %s: %w", s.w.name, s.id, ErrNotFound)
	}
	if err := change(&s.rec); err != nil {
		s.mu.Unlock()
		return err
	}
	s.rec.Changed = time.Now().UTC()
	if s.damage != "" {
		s.publish()
		s.mu.Unlock()
		return nil
	}
	data, err := s.rec.encode()
	if err != nil {
		s.mu.Unlock()
		return err
	}
	done := e.journal.put(Change{Key: recordKey(s.w.name, s.id), Data: data})
	s.publish()
	s.mu.Unlock()
	if err := <-done; err != nil {
		return fmt.Errorf("journal %s %s: %w", s.w.name, s.id, err)
	}
	return nil
}

// remove takes the record from the journal and then, and only then, frees its
// name. A subject that never began to climb has no record to remove.
func (e *Engine) remove(s *subject) error {
	s.mu.Lock()
	if s.state.Load().view != nil {
		s.gone = true
		done := e.journal.put(Change{Key: recordKey(s.w.name, s.id)})
		s.mu.Unlock()
		if err := <-done; err != nil {
			s.mu.Lock()
			s.gone = false
			s.mu.Unlock()
			return fmt.Errorf("journal the removal of %s %s: %w", s.w.name, s.id, err)
		}
		s.mu.Lock()
	}
	s.gone = true
	s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	s.feed.show(s, nil) // before the next holder of its id can be seen
	delete(s.w.subjects, s.id)
	if s.w.names[s.rec.Name] == s {
		delete(s.w.names, s.rec.Name)
	}
	return nil
}

// Amend journals values on a subject outside of a flow (an exit, updated
// resources). It does not wait for a move in flight. Errors: ErrNotFound.
// If the journal fails the values are seen by readers but may be lost in a crash.
func (e *Engine) Amend(ctx context.Context, workflow, id string, values ...Value) error {
	return e.Update(ctx, workflow, id, func(*View) ([]Value, error) { return values, nil })
}

// Update is Amend with a function of the present view, atomically: no other
// change of the subject comes between. f must be quick and must not amend the
// same subject. If f gives no values nothing is written.
func (e *Engine) Update(ctx context.Context, workflow, id string, f func(*View) ([]Value, error)) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("amend %s %s: %w", workflow, id, err)
	}
	s := e.find(workflow, id)
	if s == nil {
		return fmt.Errorf("amend %s %s: %w", workflow, id, ErrNotFound)
	}
	err := e.commit(s, func(r *record) error {
		if s.damage != "" {
			return errors.New(s.damage)
		}
		var values []Value
		err := guard(func() (err error) {
			values, err = f(r.view())
			return err
		})
		if err == nil {
			err = check(values)
		}
		if err == nil && len(values) == 0 {
			err = errNothing
		}
		if err == nil {
			r.fill(values)
		}
		return err
	})
	if err != nil && !errors.Is(err, errNothing) {
		return fmt.Errorf("amend %s %s: %w", workflow, id, err)
	}
	return nil
}

var errNothing = errors.New("nothing to write")

// subjectSlots lets a Run read and fill the slots of a subject. What is filled
// is journaled with the next commit of the move.
type subjectSlots struct{ s *subject }

func (x subjectSlots) load(k Key) *box {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return x.s.rec.Slots[k]
}

func (x subjectSlots) store(v Value) {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	x.s.rec.fill([]Value{v})
}

func (x subjectSlots) all() map[Key]*box {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	return maps.Clone(x.s.rec.Slots)
}
