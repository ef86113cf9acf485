// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// endless is the queue of a limiter that delays and never refuses.
const endless = -1

// limiter gives places to moves, first come first served.
type limiter struct {
	name string

	mu       sync.Mutex
	limit    int // 0 is unlimited
	queue    int // how many may wait, or endless
	inFlight int
	peak     int
	refused  int
	waiters  []chan struct{} // closed when the place is given
}

// try takes a place if one is free and nobody waits for it.
func (l *limiter) try() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takeLocked()
}

func (l *limiter) takeLocked() bool {
	if len(l.waiters) > 0 || (l.limit > 0 && l.inFlight >= l.limit) {
		return false
	}
	l.give()
	return true
}

func (l *limiter) give() {
	l.inFlight++
	l.peak = max(l.peak, l.inFlight)
}

// acquire takes a place or waits in the queue. Errors: ErrConcurrentFailed if
// the queue is full, the context's cause, ErrClosed.
func (l *limiter) acquire(ctx context.Context, closing <-chan struct{}) error {
	l.mu.Lock()
	if l.takeLocked() {
		l.mu.Unlock()
		return nil
	}
	if l.queue != endless && len(l.waiters) >= l.queue {
		l.refused++
		err := fmt.Errorf("%s: %d in flight of %d, %d waiting: %w", l.name, l.inFlight, l.limit, len(l.waiters), ErrConcurrentFailed)
		l.mu.Unlock()
		return err
	}
	place := make(chan struct{})
	l.waiters = append(l.waiters, place)
	l.mu.Unlock()

	var err error
	select {
	case <-place:
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("wait for a place in %s: %w", l.name, context.Cause(ctx))
	case <-closing:
		err = ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiters, place); i >= 0 {
		l.waiters = slices.Delete(l.waiters, i, i+1)
	} else { // given in the same moment
		l.inFlight--
		l.grant()
	}
	return err
}

func (l *limiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.grant()
}

// set changes the limit. Those in flight are let be, those waiting wake if it is raised.
func (l *limiter) set(limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
	l.grant()
}

// grant gives free places to those who wait. The caller holds mu.
func (l *limiter) grant() {
	for len(l.waiters) > 0 && (l.limit == 0 || l.inFlight < l.limit) {
		close(l.waiters[0])
		l.waiters = slices.Delete(l.waiters, 0, 1)
		l.give()
	}
}

func (l *limiter) status(s *FlowStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Limit, s.Queue = l.limit, max(l.queue, 0)
	s.InFlight, s.Waiting, s.Peak, s.Refused = l.inFlight, len(l.waiters), l.peak, l.refused
}
