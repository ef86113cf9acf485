// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/sandflow-cri/sandflow/snapshot"
)

const (
	// layerAge is how old the size of a writable layer may be in a list.
	layerAge = 10 * time.Second
	// layerWait is how long a whole list waits for sizes that are not known yet, and
	// metricsWait a list of metrics, which nobody needs at once.
	layerWait   = 30 * time.Millisecond
	metricsWait = time.Second
	// layerTimeout bounds one measurement.
	layerTimeout = time.Minute
)

// layers tells how much writable layers hold; the store does.
type layers interface {
	RootfsUsage(ctx context.Context, key string) (snapshot.Usage, error)
	ImageFS(ctx context.Context) (snapshot.FS, error)
}

// layerUse keeps the sizes of writable layers. To measure one every file in it is looked at,
// and a container may have millions of them; so lists take what is known, and have it
// measured behind them. mu guards the map alone and is not held while measuring.
type layerUse struct {
	read  layers
	turns chan struct{} // one for each that may be measured at once

	mu      sync.Mutex
	known   map[string]*layer
	closed  bool
	flights sync.WaitGroup
	closing chan struct{}
}

// layer is one writable layer.
type layer struct {
	usage snapshot.Usage
	at    time.Time // zero: not measured yet
	done  chan struct{}
}

// size is the size of a layer, and when it was measured.
type size struct {
	snapshot.Usage
	at time.Time
}

func newLayerUse(l layers) *layerUse {
	return &layerUse{read: l, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), known: map[string]*layer{}, closing: make(chan struct{})} //nolint:mnd // half
}

// now measures a layer. The error is that of the store.
func (l *layerUse) now(ctx context.Context, id string) (size, error) {
	usage, err := l.read.RootfsUsage(ctx, id)
	if err != nil {
		return size{}, err
	}
	s := size{usage, time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of(id)
	one.usage, one.at = s.Usage, s.at
	return s, nil
}

// list gives a function for the layers of one list: what is known, and within some time from
// now on what is not. ok is false where neither is to be had.
func (l *layerUse) list(ctx context.Context, wait time.Duration) func(id string) (s size, ok bool) {
	limit := time.Now().Add(wait)
	return func(id string) (size, bool) {
		l.mu.Lock()
		one := l.of(id)
		if one.done == nil && time.Since(one.at) > layerAge {
			l.measure(ctx, id, one)
		}
		s, done := size{one.usage, one.at}, one.done
		l.mu.Unlock()
		if !s.at.IsZero() || done == nil {
			return s, !s.at.IsZero()
		}
		timer := time.NewTimer(time.Until(limit))
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		return size{one.usage, one.at}, !one.at.IsZero()
	}
}

// of finds a layer. The caller holds mu.
func (l *layerUse) of(id string) *layer {
	one := l.known[id]
	if one == nil {
		one = &layer{}
		l.known[id] = one
	}
	return one
}

// measure has a layer measured behind. The caller holds mu.
func (l *layerUse) measure(ctx context.Context, id string, one *layer) {
	if l.closed {
		return
	}
	done := make(chan struct{})
	one.done = done
	l.flights.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), layerTimeout)
		defer cancel()
		go func() {
			select {
			case <-l.closing:
				cancel()
			case <-ctx.Done():
			}
		}()
		l.turns <- struct{}{}
		usage, err := l.read.RootfsUsage(ctx, id)
		<-l.turns
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case err == nil:
			one.usage, one.at = usage, time.Now()
		case l.known[id] == one: // it has gone, or is measured the next time
			delete(l.known, id)
		}
		one.done = nil
		close(done)
	})
}

func (l *layerUse) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, id)
}

// close ends what is being measured. Lists that follow have nothing measured.
func (l *layerUse) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	close(l.closing)
	l.flights.Wait()
}
