// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri/hooks"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// UpdatePodSandboxResources records what the pod as a whole may use, all of it or, when a
// plugin refuses it or it cannot be journaled, nothing. Kubelet has changed the pod's cgroup
// before it asks. What the request leaves out stays as it was.
func (s *Server) UpdatePodSandboxResources(ctx context.Context, r *runtime.UpdatePodSandboxResourcesRequest) (*runtime.UpdatePodSandboxResourcesResponse, error) {
	p, err := s.readyPod(r.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	values, err := podResources(r)
	if err == nil {
		err = s.services.NRI.UpdatePod(ctx, p.ID, hooks.Resources(r.GetOverhead()), hooks.Resources(r.GetResources()))
	}
	if err == nil {
		err = s.engine.Hold(ctx, steps.Sandbox, p.ID, func(ctx context.Context, v *engine.View) error {
			p := newPod(v) // as it is now
			return s.amend(ctx, steps.Sandbox, p.ID, values,
				steps.PodOverhead.With(protoOf(p.overhead())), steps.PodResources.With(protoOf(p.resources())))
		})
	}
	if err != nil {
		return nil, fmt.Errorf("update sandbox %s: %w", p.ID, err)
	}
	s.services.NRI.UpdatedPod(ctx, p.ID)
	return &runtime.UpdatePodSandboxResourcesResponse{}, nil
}

func podResources(r *runtime.UpdatePodSandboxResourcesRequest) ([]engine.Value, error) {
	var values []engine.Value
	for _, f := range []struct {
		name string
		is   *runtime.LinuxContainerResources
		slot engine.Slot[steps.Proto[*runtime.LinuxContainerResources]]
	}{{"overhead", r.GetOverhead(), steps.PodOverhead}, {"resources", r.GetResources(), steps.PodResources}} {
		if f.is == nil {
			continue
		}
		if err := wellFormed(f.name, f.is); err != nil {
			return nil, err
		}
		if err := spec.ValidateResources(f.name, f.is); err != nil {
			return nil, err
		}
		values = append(values, f.slot.With(protoOf(f.is)))
	}
	return values, nil
}

// resources of the pod as a whole: of the last update, else of the request.
func (p pod) resources() *runtime.LinuxContainerResources {
	if r, ok, err := steps.PodResources.Get(p.View); err == nil && ok {
		return r.M
	}
	return p.config.GetLinux().GetResources()
}

// overhead of the pod besides its containers: of the last update, else of the request.
func (p pod) overhead() *runtime.LinuxContainerResources {
	if r, ok, err := steps.PodOverhead.Get(p.View); err == nil && ok {
		return r.M
	}
	return p.config.GetLinux().GetOverhead()
}
