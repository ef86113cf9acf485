// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"sync"

	"github.com/sandflow-cri/sandflow/engine"
)

// drain ends the streams that would go on for ever when the daemon is to stop.
type drain struct {
	once  sync.Once
	begun chan struct{}
}

func newDrain() *drain { return &drain{begun: make(chan struct{})} }

// Drain ends the streams of events, which nothing else ends but their readers, so that
// a graceful stop of the gRPC server has nothing to wait for.
func (s *Server) Drain() { s.drain.once.Do(func() { close(s.drain.begun) }) }

// until gives a context that also ends, with engine.ErrClosed, when draining begins.
// end must be called.
func (d *drain) until(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-d.begun:
			cancel(engine.ErrClosed)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}
