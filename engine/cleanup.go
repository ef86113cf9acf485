// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"sync"
	"time"
)

// RunCleanup retries stuck subjects, each with a back-off of its own, until ctx
// ends; then it waits for the tries in flight.
func (e *Engine) RunCleanup(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		timer := time.NewTimer(e.retryDue(ctx, &wg))
		select {
		case <-ctx.Done():
		case <-e.closing:
		case <-e.kick:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil || e.isClosed() {
			return
		}
	}
}

func (e *Engine) isClosed() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.closed
}

// retryDue starts what is due and says how long the next is away.
func (e *Engine) retryDue(ctx context.Context, wg *sync.WaitGroup) time.Duration {
	next := e.opts.Backoff.Max
	for _, s := range e.stuck() {
		v := s.state.Load().view
		if v == nil || v.Phase != Stuck {
			continue
		}
		if wait := time.Until(v.Retry); wait > 0 {
			next = min(next, wait)
			continue
		}
		if !s.tryTake() { // a move is in flight; if it fails we are kicked
			continue
		}
		if e.enter() != nil {
			s.release()
			continue
		}
		wg.Go(func() {
			defer e.leave()
			defer s.release()
			e.retry(context.WithoutCancel(ctx), s)
		})
	}
	return next
}

// stuck lists the stuck subjects, those of the workflow defined last first.
func (e *Engine) stuck() []*subject {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var list []*subject
	for i := len(e.order) - 1; i >= 0; i-- {
		if len(e.order[i].down) == 0 {
			continue
		}
		for _, s := range e.order[i].subjects {
			if v := s.state.Load().view; v != nil && v.Phase == Stuck {
				list = append(list, s)
			}
		}
	}
	return list
}

// retry goes on with a descent that was stuck. The token is held.
func (e *Engine) retry(ctx context.Context, s *subject) {
	r := s.snapshot()
	if r.Phase != Stuck {
		return
	}
	m := &move{s: s, way: s.w.way(r.Goal)}
	m.flow = m.way.name
	// The outcome is in the record.
	_ = e.goDown(ctx, m, r.Goal, nil)
}
