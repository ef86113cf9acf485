// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
)

// Waiters is how many callers wait for pulls.
func Waiters(s *Store) int {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	n := 0
	for _, c := range s.pulls.calls {
		n += c.waiters
	}
	return n
}

// Collect runs containerd's garbage collection.
func Collect(ctx context.Context, t *testing.T, s *Store) {
	t.Helper()
	ctx = s.Context(ctx)
	ls := s.client.LeasesService()
	l, err := ls.Create(ctx, leases.WithRandomID())
	if err == nil {
		err = ls.Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		t.Fatal(err)
	}
}
