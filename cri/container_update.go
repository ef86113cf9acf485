// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// UpdateContainerResources changes the limits of a running container, or those that a
// created one will start with: all that the request names, or when one of them cannot be
// had none, and the status tells what it told before.
func (s *Server) UpdateContainerResources(ctx context.Context, r *runtime.UpdateContainerResourcesRequest) (*runtime.UpdateContainerResourcesResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("update container: %w", err)
	}
	if r.GetLinux() == nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, invalid("linux resources are missing"))
	}
	if err := errors.Join(wellFormed("linux", r.GetLinux()), boundedLabels(nil, r.GetAnnotations())); err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, err)
	}
	if err := s.updateResources(ctx, c, r); err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, err)
	}
	return &runtime.UpdateContainerResourcesResponse{}, nil
}

func (s *Server) updateResources(ctx context.Context, c container, r *runtime.UpdateContainerResourcesRequest) error {
	limits, _, err := spec.Update(c.resources().GetLinux(), r.GetLinux())
	if err != nil {
		return err
	}
	if err := c.updatable(); err != nil {
		return err
	}
	wanted, err := s.askPlugins(ctx, c, limits)
	if err != nil {
		return err
	}
	err = s.engine.Hold(ctx, steps.Container, c.ID, func(ctx context.Context, v *engine.View) error {
		c := newContainer(v) // as it is now
		if err := c.updatable(); err != nil {
			return err
		}
		limits, merged, err := spec.Update(c.resources().GetLinux(), r.GetLinux())
		if err != nil {
			return err
		}
		if wanted != nil { // what plugins have made of it
			limits, merged = wanted, spec.Merge(merged, criResources(wanted))
		}
		if c.running() == nil {
			// That of processes is inherited, and cannot be changed for all of a container.
			merged.OomScoreAdj = c.resources().GetLinux().GetOomScoreAdj()
		}
		return s.change(ctx, c, newLimits{limits, r.GetLinux().GetOomScoreAdj(), r.GetAnnotations(), merged})
	})
	if err == nil {
		s.services.NRI.UpdatedContainer(ctx, c.ID)
	}
	return err
}

// ReopenContainerLog makes the log file anew after it was renamed.
func (s *Server) ReopenContainerLog(ctx context.Context, r *runtime.ReopenContainerLogRequest) (*runtime.ReopenContainerLogResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("reopen log of container: %w", err)
	}
	if err := c.running(); err != nil {
		return nil, fmt.Errorf("reopen log: %w", err)
	}
	tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
	if err == nil {
		err = tasks.ReopenLog(ctx, c.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", c.ID, err)
	}
	return &runtime.ReopenContainerLogResponse{}, nil
}
