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
	"github.com/sandflow-cri/sandflow/steps"
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
	if err := p.s.setLimits(ctx, c, limits, nil); err != nil {
		return err
	}
	return p.s.amendLimits(ctx, c, limits)
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

// updatable refuses an update of a container that has ended.
func (c container) updatable() error {
	if c.state() == runtime.ContainerState_CONTAINER_CREATED {
		return nil
	}
	return c.running()
}

// setLimits changes the limits of a running container, or those that a created
// one will start with.
func (s *Server) setLimits(ctx context.Context, c container, limits *specs.LinuxResources, annotations map[string]string) error {
	switch c.state() {
	case runtime.ContainerState_CONTAINER_RUNNING:
		tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
		if err != nil {
			return err
		}
		return tasks.Update(ctx, c.ID, limits, annotations)
	case runtime.ContainerState_CONTAINER_CREATED:
		return spec.UpdateBundle(s.config.ContainerDir(c.ID), limits)
	default:
		return c.running()
	}
}

// amendLimits records limits that have been set by a plugin.
func (s *Server) amendLimits(ctx context.Context, c container, limits *specs.LinuxResources) error {
	return s.engine.Update(ctx, steps.Container, c.ID, func(v *engine.View) ([]engine.Value, error) {
		merged := mergeResources(newContainer(v).resources().GetLinux(), criResources(limits))
		return []engine.Value{steps.ContainerResources.With(protoOf(&runtime.ContainerResources{Linux: merged}))}, nil
	})
}

// criResources are the limits of an OCI spec that the CRI has words for.
func criResources(r *specs.LinuxResources) *runtime.LinuxContainerResources {
	out := &runtime.LinuxContainerResources{Unified: r.Unified}
	if c := r.CPU; c != nil {
		out.CpusetCpus, out.CpusetMems = c.Cpus, c.Mems
		set(&out.CpuQuota, c.Quota)
		if c.Shares != nil {
			out.CpuShares = int64(*c.Shares) //nolint:gosec // bounded by the kernel
		}
		if c.Period != nil {
			out.CpuPeriod = int64(*c.Period) //nolint:gosec // bounded by the kernel
		}
	}
	if m := r.Memory; m != nil {
		set(&out.MemoryLimitInBytes, m.Limit)
		set(&out.MemorySwapLimitInBytes, m.Swap)
	}
	for _, l := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtime.HugepageLimit{PageSize: l.Pagesize, Limit: l.Limit})
	}
	return out
}

func set(to, from *int64) {
	if from != nil {
		*to = *from
	}
}

// askPlugins lets plugins change the limits of an update.
func (s *Server) askPlugins(ctx context.Context, c container, limits *specs.LinuxResources) (*specs.LinuxResources, error) {
	wanted, err := s.services.NRI.UpdateContainer(ctx, c.ID, api.FromOCILinuxResources(limits, nil))
	if err != nil || wanted == nil {
		return limits, err
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
