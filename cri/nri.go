// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/nri/hooks"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// plugins is what NRI plugins look at and change.
type plugins struct {
	hooks.Objects

	s *Server
}

// Plugins gives NRI plugins this server's pods and containers.
func (s *Server) Plugins() nri.Runtime {
	return plugins{Objects: hooks.Objects{Engine: s.engine, Config: s.config}, s: s}
}

// Update changes the limits of a container as a plugin wants, and what
// ContainerStatus tells of them. No plugin is asked about it.
func (p plugins) Update(ctx context.Context, u *api.ContainerUpdate) error {
	c, err := p.s.findContainer(u.GetContainerId())
	if err != nil {
		return err
	}
	limits := u.GetLinux().GetResources().ToOCI()
	return p.s.holdShortly(ctx, c.ID, func(ctx context.Context, v *engine.View) error {
		c := newContainer(v)
		if err := c.updatable(); err != nil {
			return err
		}
		whole, merged, err := spec.Update(c.resources().GetLinux(), criResources(limits))
		if err != nil {
			return err
		}
		if m := limits.Memory; m != nil && whole.Memory != nil {
			m.Swap = whole.Memory.Swap // follows from the limit if the plugin does not say
		}
		return p.s.change(ctx, c, newLimits{limits: limits, merged: merged})
	})
}

// evictGrace is how long an evicted container has to end by itself.
const evictGrace = 30 * time.Second

// Evict stops a container as StopContainer does.
func (p plugins) Evict(ctx context.Context, id, reason string) error {
	c, err := p.s.findContainer(id)
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("An NRI plugin evicts a container", "container", c.ID, "reason", reason)
	_, err = p.s.StopContainer(ctx, &runtime.StopContainerRequest{ContainerId: c.ID, Timeout: int64(evictGrace / time.Second)})
	return err
}

// askPlugins lets plugins change the limits of an update; nil if they want no others.
func (s *Server) askPlugins(ctx context.Context, c container, limits *specs.LinuxResources) (*specs.LinuxResources, error) {
	wanted, err := s.services.NRI.UpdateContainer(ctx, c.ID, api.FromOCILinuxResources(limits, nil))
	if err != nil || wanted == nil {
		return nil, err
	}
	changed := wanted.ToOCI()
	if changed.Memory != nil && changed.Memory.Limit == nil && limits.Memory == nil {
		changed.Memory = nil // nothing was said of memory
	}
	if err := validLimits(changed); err != nil {
		return nil, fmt.Errorf("limits that NRI plugins want: %w", err)
	}
	return changed, nil
}

// validLimits refuses what the CRI would refuse as well.
func validLimits(r *specs.LinuxResources) error {
	_, err := spec.Resources(criResources(r))
	return err
}
