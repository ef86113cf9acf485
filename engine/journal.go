// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// Journal keeps one record per subject. The engine calls Write from one
// goroutine and hands it all changes that came while the one before was under
// way, so that many subjects share one sync to disk.
type Journal interface {
	// Load calls f with every record.
	Load(f func(key string, data []byte) error) error
	// Write makes all changes durable, or none.
	Write(changes []Change) error
	Close() error
}

// Change puts a record, or removes it if Data is nil.
type Change struct {
	Key  string
	Data []byte
}

// batcher is the queue before the journal.
type batcher struct {
	journal Journal
	wake    chan struct{}
	stopped chan struct{}

	mu      sync.Mutex
	closed  bool
	changes []Change
	waiting []chan<- error
}

func newBatcher(j Journal) *batcher {
	b := &batcher{journal: j, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	go b.run()
	return b
}

// put queues a change. The channel gives the outcome once it is durable.
func (b *batcher) put(c Change) <-chan error {
	done := make(chan error, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		done <- ErrClosed
		return done
	}
	b.changes = append(b.changes, c)
	b.waiting = append(b.waiting, done)
	b.signal()
	return done
}

// signal wakes the writer. The caller holds mu.
func (b *batcher) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *batcher) run() {
	defer close(b.stopped)
	for range b.wake {
		b.mu.Lock()
		changes, waiting, closed := b.changes, b.waiting, b.closed
		b.changes, b.waiting = nil, nil
		b.mu.Unlock()
		if len(changes) > 0 {
			err := guard(func() error { return b.journal.Write(changes) })
			for _, done := range waiting {
				done <- err
			}
		}
		if closed {
			return
		}
	}
}

// close writes what is queued and closes the journal.
func (b *batcher) close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		<-b.stopped
		return nil
	}
	b.closed = true
	b.signal()
	b.mu.Unlock()
	<-b.stopped
	return b.journal.Close()
}
