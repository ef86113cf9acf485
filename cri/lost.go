// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

const (
	// lookAtOnce is how many shims are looked at side by side at the start.
	lookAtOnce = 16
	// lookAgain is the pause before a shim that could not be reached is tried again.
	lookAgain = time.Second
)

// pod watches the shim of a pod; a pod whose shim is gone is NOTREADY.
func (m *monitor) pod(id string) {
	m.watch(id, func(ctx context.Context) {
		left := m.left(ctx, id)
		for {
			v, ok := m.engine.Get(steps.Sandbox, id)
			if !ok {
				return
			}
			gone, err := m.shimGone(ctx, v)
			if err == nil && !isClosed(gone) {
				m.setLost(ctx, id, false) // of a daemon before this one, which could not reach it
			}
			var again <-chan time.Time
			if err != nil { // no descriptors, or it takes no connection: that says nothing of the shim
				klog.FromContext(ctx).Error(err, "Could not look at the shim of a sandbox; will try again", "sandbox", id)
				again = time.After(lookAgain)
			}
			select {
			case <-gone: // never, if it could not be reached
				m.setLost(ctx, id, true)
				m.strand(ctx, id)
				return
			case <-again:
			case <-ctx.Done():
				return
			case <-left:
				return
			}
		}
	})
}

// shimGone gives a channel that is closed when the shim is gone; one whose handler is not
// configured any more counts as that. An error says that nobody knows.
func (m *monitor) shimGone(ctx context.Context, v *engine.View) (<-chan struct{}, error) {
	gone, err := m.runtime.Alive(runtimePod(newPod(v))) //nolint:contextcheck // lives as long as the shim
	if !errdefs.IsNotFound(err) {
		return gone, err
	}
	klog.FromContext(ctx).Error(err, "Could not look at the shim of a sandbox", "sandbox", v.ID)
	none := make(chan struct{})
	close(none)
	return none, nil
}

// look finds the pods whose shims went away while no daemon ran. It asks no shim anything,
// so one that hangs does not hold it up.
func (m *monitor) look(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(lookAtOnce)
	for _, v := range m.engine.List(steps.Sandbox) {
		if v.Phase != engine.Standing || v.Station != steps.Ready {
			continue
		}
		g.Go(func() error {
			gone, err := m.shimGone(ctx, v)
			if err == nil && isClosed(gone) {
				m.setLost(ctx, v.ID, true)
				m.strand(ctx, v.ID)
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// strand ends the containers of a lost pod that were created and can never be started:
// kubelet takes one that stays CREATED for one that has ended well.
func (m *monitor) strand(ctx context.Context, podID string) {
	for _, v := range m.engine.List(steps.Container) {
		if newContainer(v).request.PodID != podID {
			continue
		}
		exit := steps.Exit{
			Code: startErrorCode, Reason: startError, Finished: time.Now(),
			Message: "the shim of its pod was gone before it was started",
		}
		err := m.engine.Update(ctx, steps.Container, v.ID, func(v *engine.View) ([]engine.Value, error) {
			if v.Phase != engine.Standing || newContainer(v).state() != criapi.ContainerState_CONTAINER_CREATED {
				return nil, nil
			}
			return []engine.Value{steps.ContainerExit.With(exit)}, nil
		})
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			klog.FromContext(ctx).Error(err, "Could not end a container that can not be started", "container", v.ID)
		}
	}
}

// setLost records whether a pod that stands has lost its shim.
func (m *monitor) setLost(ctx context.Context, id string, lost bool) {
	changed := false
	err := m.engine.Update(ctx, steps.Sandbox, id, func(v *engine.View) ([]engine.Value, error) {
		if v.Station != steps.Ready || v.Phase != engine.Standing || newPod(v).lost() == lost {
			return nil, nil
		}
		changed = true
		return []engine.Value{steps.PodLost.With(lost)}, nil
	})
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		klog.FromContext(ctx).Error(err, "Could not record whether a sandbox has its shim", "sandbox", id)
	}
	if changed && lost {
		klog.FromContext(ctx).Info("The shim of a sandbox is gone", "sandbox", id)
	}
}
