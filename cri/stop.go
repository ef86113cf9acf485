// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// A stop that has begun goes on: its end is in the record, so that another StopContainer, or a
// daemon that is started anew, waits for no more than what is left of the grace period and
// sends no second signal, by which many programs give up what they were about to finish.

// beginStop records by when the container has to end. again says that it has been asked to
// before; then the earlier of both ends counts. left is what is left until then.
func (s *Server) beginStop(ctx context.Context, id string, grace time.Duration) (left time.Duration, again bool, err error) {
	now, err := sinceBoot()
	if err != nil {
		return grace, false, err
	}
	by := now + grace
	err = s.engine.Update(ctx, steps.Container, id, func(v *engine.View) ([]engine.Value, error) {
		before, ok, err := steps.ContainerStop.Get(v)
		if again = err == nil && ok; again && before.By <= by {
			by = before.By
			return nil, nil
		}
		return []engine.Value{steps.ContainerStop.With(steps.Stopping{By: by})}, nil
	})
	return max(0, by-now), again, err
}

// sinceBoot is a clock that nobody sets, and that goes on while no daemon runs.
func sinceBoot() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// goOnStopping sees to it that a stop which has begun comes to its end though nobody waits for
// it any more: its client has gone, or its daemon was killed.
func (s *Server) goOnStopping(id string) {
	s.monitor.watch("stop "+id, func(ctx context.Context) {
		v, ok := s.engine.Get(steps.Container, id)
		if !ok {
			return
		}
		stop, ok, err := steps.ContainerStop.Get(v)
		now, cerr := sinceBoot()
		if err = errors.Join(err, cerr); err != nil || !ok {
			return // it can be asked to again
		}
		ended, err := s.waitExit(ctx, id, max(0, stop.By-now))
		if err == nil && !ended {
			klog.FromContext(ctx).Info("The grace period of a stop that nobody waits for is over; killing", "container", id)
			err = s.kill(ctx, id)
		}
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not end a stop that has begun", "container", id)
		}
	})
}

// goOnStoppingAll takes up the stops that an earlier daemon has begun.
func (s *Server) goOnStoppingAll() {
	for _, v := range s.engine.List(steps.Container) {
		if _, ok, err := steps.ContainerStop.Get(v); err == nil && ok && newContainer(v).running() == nil {
			s.goOnStopping(v.ID)
		}
	}
}
