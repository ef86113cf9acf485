// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"testing"
)

// late is a context that ends in the very moment in which the place is given.
type late struct {
	context.Context
	end func()
}

func (l late) Done() <-chan struct{} {
	l.end()
	return closedChannel
}

// A caller who leaves the queue just when its place is given loses none: either
// it has the place, or the place is free again.
func TestPlaceGivenToOneWhoLeaves(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // which of the two wins is chance
		l := &limiter{name: "test", limit: 1, queue: 1}
		if err := l.acquire(gone, nil); err != nil {
			t.Fatalf("a free place was refused: %v", err)
		}
		if err := l.acquire(late{gone, l.release}, nil); err == nil {
			l.release()
		}
		if l.inFlight != 0 || len(l.waiters) != 0 || !l.try() {
			t.Fatalf("%d in flight, %d waiting", l.inFlight, len(l.waiters))
		}
	}
}
