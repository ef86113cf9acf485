// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
)

// Observer tells plugins what no action can, since it is so only when a flow is
// done: that a container has been created or started, and that a record is
// gone, whichever way it went. It also makes up for an undo that a changed
// configuration has left out.
type Observer struct {
	nri *nri.Manager
	get func(workflow, id string) (*engine.View, bool)
}

// NewObserver returns an observer; get is Engine.Get, first called when a flow is done.
func NewObserver(m *nri.Manager, get func(workflow, id string) (*engine.View, bool)) *Observer {
	return &Observer{nri: m, get: get}
}

// Around implements engine.Observer.
func (o *Observer) Around(ctx context.Context, s engine.Span, next func(context.Context) error) error {
	err := next(ctx)
	if err != nil || s.Action != "" || s.ID == "" || !o.nri.Enabled() {
		return err
	}
	switch {
	case s.Workflow == steps.Container && s.Down:
		o.containerDown(ctx, s.ID)
	case s.Workflow == steps.Container && s.Flow == steps.Create:
		o.nri.CreatedContainer(ctx, s.ID)
	case s.Workflow == steps.Container && s.Flow == steps.Start:
		o.nri.StartedContainer(ctx, s.ID)
	case s.Workflow == steps.Sandbox && s.Down:
		o.podDown(ctx, s.ID)
	}
	return nil
}

func (o *Observer) containerDown(ctx context.Context, id string) {
	if _, there := o.get(steps.Container, id); there {
		o.nri.StopContainer(ctx, id)
		return
	}
	o.nri.RemoveContainer(ctx, id)
}

func (o *Observer) podDown(ctx context.Context, id string) {
	if _, there := o.get(steps.Sandbox, id); there {
		o.nri.StopPod(ctx, id)
		return
	}
	o.nri.RemovePod(ctx, id)
}
