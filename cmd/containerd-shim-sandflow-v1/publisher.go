// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/shim"
)

var _ shim.Publisher = (*pod)(nil)

// Publish takes the events of containerd's task service. Nobody needs to be
// told: exits are recorded in the bundle and given to those who wait.
func (p *pod) Publish(ctx context.Context, _ string, event events.Event) error {
	e, ok := event.(*eventsapi.TaskExit)
	if !ok || e.ID != e.ContainerID {
		return nil
	}
	if c, err := p.get(e.ContainerID); err == nil {
		c.end(ctx, e.ExitStatus, e.ExitedAt.AsTime())
	}
	return nil
}

// Close is part of shim.Publisher.
func (p *pod) Close() error { return nil }
