// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// tokenTTL is how long a URL may wait for its client.
	tokenTTL = time.Minute
	// maxTokens is how many URLs may wait at once.
	maxTokens = 1000
)

// tokens holds the requests whose URLs were handed out and not yet used. Each
// token is redeemed once; one that is not redeemed in time is forgotten. Safe
// for concurrent use.
type tokens struct {
	ttl time.Duration
	max int
	now func() time.Time

	mu      sync.Mutex
	waiting map[string]waiting
}

type waiting struct {
	req     any
	expires time.Time
}

func newTokens(ttl time.Duration, limit int) *tokens {
	return &tokens{ttl: ttl, max: limit, now: time.Now, waiting: map[string]waiting{}}
}

// issue keeps req under a new token of 130 random bits.
func (t *tokens) issue(req any) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for token, w := range t.waiting {
		if !now.Before(w.expires) {
			delete(t.waiting, token)
		}
	}
	if len(t.waiting) >= t.max {
		return "", fmt.Errorf("issue a streaming URL: %d are waiting for their clients: %w",
			len(t.waiting), errdefs.ErrResourceExhausted)
	}
	token := rand.Text()
	t.waiting[token] = waiting{req: req, expires: now.Add(t.ttl)}
	return token, nil
}

// redeem takes the request of a token, which is void from then on.
func (t *tokens) redeem(token string) (any, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.waiting[token]
	delete(t.waiting, token)
	if !ok || !t.now().Before(w.expires) {
		return nil, false
	}
	return w.req, true
}

// limiter bounds how many sessions each container has at once; 0 is no bound.
// Safe for concurrent use.
type limiter struct {
	max int

	mu    sync.Mutex
	inUse map[string]int
}

func newLimiter(limit int) *limiter { return &limiter{max: limit, inUse: map[string]int{}} }

// enter takes a place of the container; leave, called once, gives it back.
func (l *limiter) enter(container string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.max > 0 && l.inUse[container] >= l.max {
		return nil, fmt.Errorf("container %s has %d sessions, the limit: %w",
			container, l.inUse[container], errdefs.ErrResourceExhausted)
	}
	l.inUse[container]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.inUse[container]--; l.inUse[container] <= 0 {
			delete(l.inUse, container)
		}
	}, nil
}
