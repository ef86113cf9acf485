// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"sync"
)

// tasks are what runs beside: every goroutine of the daemon is in it, and
// waited for.
type tasks struct {
	ctx    context.Context //nolint:containedctx // it is the life of the goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed chan error // holds the first failure
}

func (t *tasks) init(ctx context.Context) {
	t.ctx, t.cancel = context.WithCancel(ctx)
	t.failed = make(chan error, 1)
}

// run starts f, which must return soon after its context ends.
func (t *tasks) run(name string, f func(context.Context) error) {
	t.wg.Go(func() {
		err := f(t.ctx)
		if err == nil || t.ctx.Err() != nil {
			return
		}
		select {
		case t.failed <- fmt.Errorf("%s: %w", name, err):
		default: // not the first
		}
	})
}

// wait waits for ctx, or for the first task that fails.
func (t *tasks) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-t.failed:
		return err
	}
}

// stop ends all tasks and waits for them. It returns a failure that nobody has waited for.
func (t *tasks) stop() error {
	t.cancel()
	t.wg.Wait()
	select {
	case err := <-t.failed:
		return err
	default:
		return nil
	}
}
