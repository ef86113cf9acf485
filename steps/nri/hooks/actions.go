// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hooks has the actions and the observer that tell NRI plugins what
// happens, at the place in the ladders where it happens, and what plugins see
// of pods and containers:
//
//	sandbox.create   … shim · nri-pod                RunPodSandbox    / StopPodSandbox
//	container.create … spec · nri-container          CreateContainer  / RemoveContainer
//	container.start  nri-start · task                StartContainer   / StopContainer
//	flow done: PostCreateContainer, PostStartContainer; record gone: RemovePodSandbox
package hooks

import (
	"context"
	"fmt"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

func init() {
	steps.Register("nri-pod", func(s *steps.Services) engine.Action { return NewPod(s.NRI) })
	steps.Register("nri-container", func(s *steps.Services) engine.Action { return NewContainer(s.NRI, s.Config) })
	steps.Register("nri-start", func(s *steps.Services) engine.Action { return NewStart(s.NRI) })
}

var (
	_ engine.Conditional = (*Pod)(nil)
	_ engine.Conditional = (*Container)(nil)
	_ engine.Conditional = (*Start)(nil)
	_ engine.Needer      = (*Container)(nil)
	_ engine.Filler      = (*Container)(nil)
)

// Pod is the action "nri-pod". It is the last of its flow: a pod that is not
// whole is not told of, and going down plugins are told before anything goes.
type Pod struct{ nri *nri.Manager }

// NewPod returns the action.
func NewPod(m *nri.Manager) *Pod { return &Pod{nri: m} }

// Applies is part of engine.Conditional.
func (a *Pod) Applies(*engine.Run) bool { return a.nri.Enabled() }

// Do tells RunPodSandbox; a plugin may refuse.
func (a *Pod) Do(ctx context.Context, r *engine.Run) error { return a.nri.RunPod(ctx, r.ID()) }

// Undo tells StopPodSandbox, if the pod was told of and it has not been told.
// RemovePodSandbox is told when the record is gone, by the Observer.
func (a *Pod) Undo(ctx context.Context, r *engine.Run) error {
	a.nri.StopPod(ctx, r.ID())
	return nil
}

// Container is the action "nri-container".
type Container struct {
	nri    *nri.Manager
	config steps.Config
}

// NewContainer returns the action.
func NewContainer(m *nri.Manager, c steps.Config) *Container { return &Container{nri: m, config: c} }

// Applies is part of engine.Conditional.
func (a *Container) Applies(*engine.Run) bool { return a.nri.Enabled() }

// Needs is part of engine.Needer.
func (a *Container) Needs() []engine.Key {
	return []engine.Key{steps.ContainerRequest.Key(), steps.ContainerSpec.Key()}
}

// Fills is part of engine.Filler.
func (a *Container) Fills() engine.Key { return steps.ContainerCgroup.Key() }

// Do tells CreateContainer and changes the OCI spec as plugins want.
func (a *Container) Do(ctx context.Context, r *engine.Run) error {
	request, err := steps.ContainerRequest.Need(r)
	if err != nil {
		return err
	}
	written, err := steps.ContainerSpec.Need(r)
	if err != nil {
		return err
	}
	adjustment, err := a.nri.CreateContainer(ctx, r.ID(), request.PodID)
	if err != nil || adjustment == nil {
		return err
	}
	s, err := spec.ReadBundle(written.Bundle)
	if err != nil {
		return fmt.Errorf("change the OCI spec of container %s as NRI plugins want: %w", r.ID(), err)
	}
	if err := adjust(s, adjustment, a.config.CDISpecDirs); err != nil {
		return fmt.Errorf("change the OCI spec of container %s as NRI plugins want: %w", r.ID(), err)
	}
	if err := spec.WriteBundle(written.Bundle, s); err != nil {
		return fmt.Errorf("write the OCI spec of container %s as NRI plugins want it: %w", r.ID(), err)
	}
	if s.Linux != nil && s.Linux.CgroupsPath != written.CgroupPath {
		return steps.ContainerCgroup.Set(r, s.Linux.CgroupsPath)
	}
	return nil
}

// Undo tells RemoveContainer, if the container was told of. The spec is another
// action's.
func (a *Container) Undo(ctx context.Context, r *engine.Run) error {
	a.nri.RemoveContainer(ctx, r.ID())
	return nil
}

// Start is the action "nri-start". It comes before the task: StopContainer is
// told when the task is gone.
type Start struct{ nri *nri.Manager }

// NewStart returns the action.
func NewStart(m *nri.Manager) *Start { return &Start{nri: m} }

// Applies is part of engine.Conditional.
func (a *Start) Applies(*engine.Run) bool { return a.nri.Enabled() }

// Do tells StartContainer; a plugin may refuse.
func (a *Start) Do(ctx context.Context, r *engine.Run) error {
	return a.nri.StartContainer(ctx, r.ID())
}

// Undo tells StopContainer, if StartContainer was told and it has not been.
func (a *Start) Undo(ctx context.Context, r *engine.Run) error {
	a.nri.StopContainer(ctx, r.ID())
	return nil
}
