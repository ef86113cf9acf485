// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checkpoint takes checkpoints of containers, and reads those of pods.
//
// A checkpoint of a container is a directory in the format of checkpointctl: what it was
// (config.dump, spec.dump, status), the dump that CRIU made of its processes (checkpoint/,
// dump.log, stats-dump), and what it had written (rootfs-diff.tar and deleted.files against
// its image, volumes/ for the image's volumes, devshm-checkpoint.tar). CheckpointContainer
// gives it as one tar file. That of a pod is pod.options and one such directory for each
// container.
//
// What is read here is not trusted: names stay in their directory, only regular files are
// opened, links are refused, and nothing of it decides what a container is given.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

const (
	// freezeTimeout bounds one freezing, thawTimeout one thawing.
	freezeTimeout = 20 * time.Second
	thawTimeout   = 20 * time.Second
	thawTries     = 3
	thawPause     = 200 * time.Millisecond
)

// Freezer freezes and thaws containers; both are idempotent.
type Freezer interface {
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
}

// Member is a container of a cut.
type Member struct {
	ID string
	Freezer
}

// ErrFrozen is that of a container that could not be thawed.
var ErrFrozen = errors.New("it is still frozen")

// Cut freezes all members, then lets take look at them, and thaws them all on every path
// out: also when one could not be frozen, when take fails or panics, and when ctx ends. If
// a member could not be thawed the error is ErrFrozen, whatever take said.
func Cut(ctx context.Context, members []Member, take func(context.Context) error) (err error) {
	var freezing sync.WaitGroup
	defer func() {
		// A freezing that is still on its way may come after a thawing otherwise.
		freezing.Wait()
		if terr := Thaw(context.WithoutCancel(ctx), members); terr != nil {
			err = errors.Join(err, terr)
		}
	}()
	if err := freeze(ctx, members, &freezing); err != nil {
		return err
	}
	if err := take(ctx); err != nil {
		return err
	}
	return ctx.Err() // what was taken past the deadline is not asked for any more
}

// freeze freezes all members side by side. It does not wait for them longer than ctx; a
// freezing once begun is not taken back, and ends within freezeTimeout.
func freeze(ctx context.Context, members []Member, freezing *sync.WaitGroup) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	done := make(chan error, len(members))
	for _, m := range members {
		freezing.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezeTimeout)
			defer cancel()
			err := m.Pause(ctx, m.ID)
			if err != nil {
				err = fmt.Errorf("freeze container %s: %w", m.ID, err)
			}
			done <- err
		})
	}
	for range members {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Thaw thaws all members side by side; one that has gone is success. It tries several
// times, each bounded. The error is ErrFrozen.
func Thaw(ctx context.Context, members []Member) error {
	errs := make([]error, len(members))
	var g errgroup.Group
	for i, m := range members {
		g.Go(func() error {
			errs[i] = thaw(ctx, m)
			return nil
		})
	}
	_ = g.Wait() // errs has them
	return errors.Join(errs...)
}

func thaw(ctx context.Context, m Member) error {
	var err error
	for try := range thawTries {
		if try > 0 {
			select {
			case <-time.After(thawPause):
			case <-ctx.Done():
			}
		}
		bounded, cancel := context.WithTimeout(ctx, thawTimeout)
		err = m.Resume(bounded, m.ID)
		cancel()
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("thaw container %s: %w: %w", m.ID, ErrFrozen, err)
}
