// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"sync"
	"time"
)

// Event is one change of a subject, as readers see it.
type Event struct {
	Workflow, ID string
	// View is the subject after the change; nil when it is gone.
	View *View
	// At is when readers could first see it. Over all subjects it only grows, and
	// whoever has had the events up to a time knows the state at that time.
	At time.Time
}

// feed tells subscribers what changes. It is the one place where the state that
// readers see is replaced, so that events come in the order of the changes.
//
// mu is held for no longer than it takes to put an event in the queues. It may be
// taken with a subject's mu or Engine.mu held, never the other way round.
type feed struct {
	mu   sync.Mutex
	last time.Time
	subs map[*Subscription]bool
}

// show replaces what readers of s see.
func (f *feed) show(s *subject, v *View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := s.state.Swap(&state{view: v, changed: make(chan struct{})})
	close(old.changed)
	if len(f.subs) == 0 || (old.view == nil && v == nil) {
		return
	}
	event := Event{Workflow: s.w.name, ID: s.id, View: v, At: f.now()}
	for sub := range f.subs {
		sub.put(event)
	}
}

// now is later than before, also when the clock is set back. The caller holds mu.
func (f *feed) now() time.Time {
	now := time.Now().UTC().Round(0)
	if !now.After(f.last) {
		now = f.last.Add(1)
	}
	f.last = now
	return now
}

// Now is the time, and not before that of any event whose change can be seen already: who
// tells what it sees with this time is never contradicted by an event of before.
func (e *Engine) Now() time.Time {
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	if now := time.Now().UTC().Round(0); now.After(e.feed.last) {
		return now
	}
	return e.feed.last
}

// Subscription is a queue of events for one reader. A reader that is slow holds up
// nobody: what does not fit ends the subscription.
type Subscription struct {
	feed    *feed
	closing <-chan struct{}
	limit   int
	wake    chan struct{}

	mu    sync.Mutex
	queue []Event
	err   error // why no more events come
}

// Subscribe gives the views of all subjects and, from there on without a gap, every
// change. At most limit events wait for the reader. Close must follow.
func (e *Engine) Subscribe(limit int) (*Subscription, []*View) {
	s := &Subscription{feed: &e.feed, closing: e.closing, limit: limit, wake: make(chan struct{}, 1)}
	e.mu.RLock()
	defer e.mu.RUnlock()
	// While the feed is held no subject's state is replaced.
	e.feed.mu.Lock()
	defer e.feed.mu.Unlock()
	if e.feed.subs == nil {
		e.feed.subs = map[*Subscription]bool{}
	}
	e.feed.subs[s] = true
	var views []*View
	for _, w := range e.workflows {
		for _, subject := range w.subjects {
			if v := subject.state.Load().view; v != nil {
				views = append(views, v)
			}
		}
	}
	return s, views
}

// Next gives the next event. Errors: ErrOverflow when more events came than could
// wait, and the reader must look anew; ErrClosed after the engine or the
// subscription was closed; the context's.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		if event, ok, err := s.take(); ok || err != nil {
			return event, err
		}
		select {
		case <-s.wake:
		case <-s.closing:
			return Event{}, ErrClosed
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

func (s *Subscription) take() (event Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.queue) == 0 {
		return event, false, s.err
	}
	event = s.queue[0]
	s.queue[0] = Event{} // the view may be the last of its subject
	s.queue = s.queue[1:]
	return event, true, nil
}

func (s *Subscription) put(event Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return
	case len(s.queue) >= s.limit:
		s.queue, s.err = nil, ErrOverflow
	default:
		s.queue = append(s.queue, event)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.feed.mu.Lock()
	delete(s.feed.subs, s)
	s.feed.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue, s.err = nil, ErrClosed
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
