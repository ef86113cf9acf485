// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"
)

// pullGroup lets callers who want the same image share one pull. The pull ends
// early only when all of them have gone.
type pullGroup struct {
	mu    sync.Mutex // never held while pulling
	calls map[pullKey]*pullCall
	tasks sync.WaitGroup
}

// pullKey tells pulls apart: what one may read with its credentials is not another's.
type pullKey [sha256.Size]byte

func newPullKey(ref string, a *Auth, o PullOptions) pullKey {
	if a == nil {
		a = &Auth{}
	}
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q", ref, *a, o))
}

type pullCall struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int // guarded by pullGroup.mu
	image   Image
	err     error
}

// do runs pull, or joins the one that runs. base ends with the store. When ctx ends
// and nobody else waits, do returns once the pull has cleaned up behind itself.
func (g *pullGroup) do(ctx, base context.Context, key pullKey, pull func(context.Context) (Image, error)) (Image, error) {
	if err := ctx.Err(); err != nil {
		return Image{}, context.Cause(ctx)
	}
	c := g.join(ctx, base, key, pull)
	select {
	case <-c.done:
		g.leave(key, c)
		return c.image, c.err
	case <-ctx.Done():
	}
	if g.leave(key, c) {
		<-c.done
	}
	return Image{}, context.Cause(ctx)
}

func (g *pullGroup) join(ctx, base context.Context, key pullKey, pull func(context.Context) (Image, error)) *pullCall {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.calls[key]; c != nil {
		c.waiters++
		return c
	}
	own, cancel := detach(ctx)
	stop := context.AfterFunc(base, cancel)
	c := &pullCall{done: make(chan struct{}), cancel: cancel, waiters: 1}
	if g.calls == nil {
		g.calls = map[pullKey]*pullCall{}
	}
	g.calls[key] = c
	g.tasks.Add(1)
	go func() {
		defer g.tasks.Done()
		defer stop()
		c.image, c.err = pull(own)
		close(c.done)
	}()
	return c
}

// leave says whether the caller was the last; then the pull is cancelled (if it
// still runs) and whoever comes next starts a new one.
func (g *pullGroup) leave(key pullKey, c *pullCall) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.waiters--
	if c.waiters > 0 {
		return false
	}
	if g.calls[key] == c {
		delete(g.calls, key)
	}
	c.cancel()
	return true
}

func (g *pullGroup) wait() { g.tasks.Wait() }

// keyedLock gives each key a lock. containerd's unpacker uses it, so that a layer
// that several pulls need is fetched and unpacked once.
type keyedLock struct {
	mu    sync.Mutex
	locks map[string]*sharedLock
}

type sharedLock struct {
	sem   *semaphore.Weighted
	users int
}

// Lock waits for the key until ctx ends.
func (k *keyedLock) Lock(ctx context.Context, key string) error {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*sharedLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &sharedLock{sem: semaphore.NewWeighted(1)}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	if err := l.sem.Acquire(ctx, 1); err != nil {
		k.release(key, l)
		return err
	}
	return nil
}

// Unlock gives the key back.
func (k *keyedLock) Unlock(key string) {
	k.mu.Lock()
	l := k.locks[key]
	k.mu.Unlock()
	l.sem.Release(1)
	k.release(key, l)
}

func (k *keyedLock) release(key string, l *sharedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.users--
	if l.users == 0 {
		delete(k.locks, key)
	}
}
