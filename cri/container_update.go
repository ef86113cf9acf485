// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// UpdateContainerResources changes the limits of a running container, or those
// that a created one will start with.
func (s *Server) UpdateContainerResources(ctx context.Context, r *runtime.UpdateContainerResourcesRequest) (*runtime.UpdateContainerResourcesResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("update container: %w", err)
	}
	if r.GetLinux() == nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, invalid("linux resources are missing"))
	}
	if err := s.updateResources(ctx, c, r); err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, err)
	}
	return &runtime.UpdateContainerResourcesResponse{}, nil
}

func (s *Server) updateResources(ctx context.Context, c container, r *runtime.UpdateContainerResourcesRequest) error {
	resources, err := spec.Resources(r.GetLinux())
	if err != nil {
		return err
	}
	if err := c.updatable(); err != nil {
		return err
	}
	limits, err := s.askPlugins(ctx, c, resources)
	if err != nil {
		return err
	}
	if err := s.setLimits(ctx, c, limits, r.GetAnnotations()); err != nil {
		return err
	}
	defer s.services.NRI.UpdatedContainer(ctx, c.ID)
	merged := mergeResources(c.resources().GetLinux(), r.GetLinux())
	if limits != resources { // what plugins have made of it
		merged = mergeResources(merged, criResources(limits))
	}
	return s.engine.Amend(ctx, steps.Container, c.ID,
		steps.ContainerResources.With(protoOf(&runtime.ContainerResources{Linux: merged})))
}

// mergeResources lays an update over what was in force: zero leaves a value as it is.
func mergeResources(was, update *runtime.LinuxContainerResources) *runtime.LinuxContainerResources {
	merged := &runtime.LinuxContainerResources{}
	if was != nil {
		merged, _ = proto.Clone(was).(*runtime.LinuxContainerResources)
	}
	if len(update.GetHugepageLimits()) > 0 {
		merged.HugepageLimits = nil // a list is replaced, not added to
	}
	proto.Merge(merged, update)
	return merged
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
