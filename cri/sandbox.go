// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	podcheck "github.com/sandflow-cri/sandflow/steps/pod"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

var errInvalid = errdefs.ErrInvalidArgument

// RunPodSandbox climbs the pod's ladder to the top. When it fails, all that was
// made is undone before the error is returned; the same metadata may be used again.
func (s *Server) RunPodSandbox(ctx context.Context, r *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
	if err := s.checkPod(r); err != nil {
		return nil, fmt.Errorf("run sandbox: %w", err)
	}
	id, name := newID(), podName(r.GetConfig().GetMetadata())
	request := steps.Pod{Config: protoOf(r.GetConfig()), Handler: r.GetRuntimeHandler(), Created: s.podCreated(r.GetConfig().GetMetadata())}
	err := s.engine.Climb(ctx, steps.Sandbox, steps.Create, id, engine.ClimbOptions{
		Name: name, Values: []engine.Value{steps.PodRequest.With(request)},
	})
	if made, ok := s.unclaimed.claim(err, r); ok {
		return &runtime.RunPodSandboxResponse{PodSandboxId: made}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("run sandbox %s: %w", name, err)
	}
	s.monitor.pod(id) //nolint:contextcheck // see watch
	if ctx.Err() != nil {
		s.unclaimed.add(id, r)
	}
	return &runtime.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// checkPod refuses what cannot be, before anything is made.
func (s *Server) checkPod(r *runtime.RunPodSandboxRequest) error {
	c := r.GetConfig()
	if c == nil {
		return invalid("config is missing")
	}
	if c.GetMetadata() == nil {
		return invalid("config.metadata is missing")
	}
	if err := wellFormed("config", c); err != nil {
		return err
	}
	if err := plainName("config.metadata.name", c.GetMetadata().GetName()); err != nil {
		return err
	}
	if size := len(c.GetMetadata().GetNamespace()) + len(c.GetMetadata().GetUid()); size > maxName {
		return invalid("config.metadata.namespace and config.metadata.uid have %d bytes, more than %d", size, maxName)
	}
	if _, ok := s.config.RuntimeFor(r.GetRuntimeHandler()); !ok {
		return invalid("no runtime handler %q is configured (known: %s)", r.GetRuntimeHandler(), s.handlerNames())
	}
	if err := boundedLabels(c.GetLabels(), c.GetAnnotations()); err != nil {
		return err
	}
	if err := logDirectory("config.log_directory", c.GetLogDirectory()); err != nil {
		return err
	}
	if err := spec.ValidatePod(c, s.config); err != nil {
		return err
	}
	return podcheck.Validate(c)
}

// StopPodSandbox ends the pod's containers, then goes down to "reserved": the
// record stays, NOTREADY, and everything the pod held is free. Unknown: success.
func (s *Server) StopPodSandbox(ctx context.Context, r *runtime.StopPodSandboxRequest) (*runtime.StopPodSandboxResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if errors.Is(err, errdefs.ErrNotFound) {
		return &runtime.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stop sandbox: %w", err)
	}
	if err := s.stopPod(ctx, p.ID); err != nil {
		return nil, err
	}
	return &runtime.StopPodSandboxResponse{}, nil
}

func (s *Server) stopPod(ctx context.Context, id string) error {
	s.unclaimed.forget(id)
	if err := s.eachContainer(ctx, id, func(ctx context.Context, c container) error { return s.kill(ctx, c.ID) }); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	err := s.engine.Descend(ctx, steps.Sandbox, steps.Destroy, id, engine.DescendOptions{Interrupt: true})
	if err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	return nil
}

// RemovePodSandbox stops the pod if need be, removes its containers and goes
// down to the ground. Unknown: success.
func (s *Server) RemovePodSandbox(ctx context.Context, r *runtime.RemovePodSandboxRequest) (*runtime.RemovePodSandboxResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if errors.Is(err, errdefs.ErrNotFound) {
		return &runtime.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remove sandbox: %w", err)
	}
	// First down: from here on no container can be made in it (see CreateContainer).
	if err := s.stopPod(ctx, p.ID); err != nil {
		return nil, err
	}
	err = s.eachContainer(ctx, p.ID, func(ctx context.Context, c container) error { return s.remove(ctx, c.ID) })
	if err == nil {
		err = s.engine.Descend(ctx, steps.Sandbox, steps.Cleanup, p.ID, engine.DescendOptions{Interrupt: true})
	}
	if err != nil {
		return nil, fmt.Errorf("remove sandbox %s: %w", p.ID, err)
	}
	s.monitor.gone(p.ID)
	return &runtime.RemovePodSandboxResponse{}, nil
}

// eachContainer runs f on all containers of a pod side by side.
func (s *Server) eachContainer(ctx context.Context, podID string, f func(context.Context, container) error) error {
	var g errgroup.Group
	for _, c := range s.containersOf(podID) {
		g.Go(func() error { return f(ctx, c) })
	}
	return g.Wait()
}

// ListPodSandbox never waits for a pod that is moving.
func (s *Server) ListPodSandbox(_ context.Context, r *runtime.ListPodSandboxRequest) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: slices.Collect(s.listPods(r.GetFilter()))}, nil
}

func matchPod(p *runtime.PodSandbox, f *runtime.PodSandboxFilter) bool {
	return hasPrefix(p.GetId(), f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == p.GetState()) &&
		hasLabels(p.GetLabels(), f.GetLabelSelector())
}

// PodSandboxStatus tells one sandbox and its containers. It has no timestamp: where there is one
// and its gate EventedPLEG is on, kubelet 1.37 takes the containers from here but none of them
// for an active one, and so starts init containers again and again. Without, it asks for each.
func (s *Server) PodSandboxStatus(_ context.Context, r *runtime.PodSandboxStatusRequest) (*runtime.PodSandboxStatusResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("status of sandbox: %w", err)
	}
	if !p.listed() {
		return nil, fmt.Errorf("status of sandbox %s: it is being created: %w", p.ID, errdefs.ErrNotFound)
	}
	answer := &runtime.PodSandboxStatusResponse{Status: p.status()}
	for _, c := range s.containersOf(p.ID) {
		if c.listed() {
			answer.ContainersStatuses = append(answer.ContainersStatuses, c.status())
		}
	}
	if r.GetVerbose() {
		if answer.Info, err = s.podInfo(p); err != nil {
			return nil, fmt.Errorf("status of sandbox %s: %w", p.ID, err)
		}
	}
	return answer, nil
}
