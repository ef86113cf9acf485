// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

// progress sees every byte that a pull's requests receive.
type progress struct {
	timeout time.Duration // 0: for ever
	waiting atomic.Int64  // requests under way
	began   time.Time
	last    atomic.Int64 // nanoseconds after began, which do not jump when the clock is set
}

// errStalled is the cause of a pull's end when nothing came for too long.
var errStalled = errors.New("no progress")

func newProgress(timeout time.Duration) *progress {
	p := &progress{timeout: timeout, began: time.Now()}
	p.moved()
	return p
}

func (p *progress) moved() { p.last.Store(int64(time.Since(p.began))) }

// idle is how long nothing has come.
func (p *progress) idle() time.Duration { return time.Since(p.began) - time.Duration(p.last.Load()) }

// guard ends the returned context when requests wait and nothing has come for the timeout.
// Unpacking, which makes no requests, may take as long as it likes. Call stop at the end.
func (p *progress) guard(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	if p.timeout <= 0 {
		close(done)
		return ctx, func() { cancel(nil) }
	}
	go func() {
		defer close(done)
		const checks = 8 // in one timeout
		tick := time.NewTicker(max(p.timeout/checks, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if p.waiting.Load() == 0 {
				p.moved()
			} else if p.idle() > p.timeout {
				cancel(classed{errdefs.ErrUnavailable, fmt.Errorf("%w for %s", errStalled, p.timeout)})
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// watch is next, seen by p.
func (p *progress) watch(next http.RoundTripper) http.RoundTripper {
	return &watchedTransport{next: next, progress: p}
}

type watchedTransport struct {
	next     http.RoundTripper
	progress *progress
}

// RoundTrip counts the request as under way until its body is closed.
func (t *watchedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.progress.moved()
	t.progress.waiting.Add(1)
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		t.progress.waiting.Add(-1)
		return nil, err
	}
	t.progress.moved()
	resp.Body = &watchedBody{ReadCloser: resp.Body, progress: t.progress}
	return resp, nil
}

type watchedBody struct {
	io.ReadCloser
	progress *progress
	closed   atomic.Bool
}

// Read notes what came.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.progress.moved()
	}
	return n, err
}

// Close ends the request.
func (b *watchedBody) Close() error {
	if b.closed.CompareAndSwap(false, true) {
		b.progress.waiting.Add(-1)
	}
	return b.ReadCloser.Close()
}
