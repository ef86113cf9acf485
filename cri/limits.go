// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// putBackTime bounds how long an OCI runtime has to take an update back.
const putBackTime = 5 * time.Second

// newLimits is an update of a container's limits.
type newLimits struct {
	limits      *specs.LinuxResources
	oomScoreAdj int64 // 0: as it is
	annotations map[string]string
	// merged is all that is in force afterwards, as the record tells it.
	merged *runtime.LinuxContainerResources
}

// change makes an update whole or not at all: what was before is noted in the record
// until what is after is there, so that a daemon that dies in between puts it back too.
//
//	note what was ─→ set ─→ record what is, drop the note
//	                  └─ fails ─→ put back, drop the note
//
// The container is held, so that it neither starts nor goes meanwhile.
func (s *Server) change(ctx context.Context, c container, n newLimits) error {
	if err := s.putBack(ctx, c); err != nil { // of an update before, that could not be undone
		return err
	}
	before, err := s.before(c, n.limits)
	if err != nil {
		return err
	}
	nothing := steps.ContainerBefore.With(steps.Before{})
	note := []engine.Value{steps.ContainerBefore.With(before)}
	if err := s.amend(ctx, steps.Container, c.ID, note, nothing); err != nil {
		return err
	}
	err = s.set(ctx, c, n)
	if err == nil {
		told := steps.ContainerResources.With(protoOf(&runtime.ContainerResources{Linux: n.merged}))
		back := append(note, steps.ContainerResources.With(protoOf(c.resources())))
		err = s.amend(ctx, steps.Container, c.ID, []engine.Value{told, nothing}, back...)
	}
	if err == nil {
		return nil
	}
	// Also when the caller has gone, or a descent has interrupted.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackTime)
	defer cancel()
	if v, ok := s.engine.Get(steps.Container, c.ID); ok {
		c = newContainer(v)
	}
	if berr := s.putBack(ctx, c); berr != nil {
		return fmt.Errorf("%w; put back what was before: %w", err, berr)
	}
	return err
}

// amend journals values, or leaves readers with those that were.
func (s *Server) amend(ctx context.Context, workflow, id string, values []engine.Value, were ...engine.Value) error {
	err := s.engine.Amend(ctx, workflow, id, values...)
	if err == nil || errors.Is(err, engine.ErrNotFound) {
		return err
	}
	// Its journaling may fail as well; what is in the journal is as it was then.
	_ = s.engine.Amend(context.WithoutCancel(ctx), workflow, id, were...)
	return err
}

// before is what update has to be undone with.
func (s *Server) before(c container, update *specs.LinuxResources) (steps.Before, error) {
	if c.state() == runtime.ContainerState_CONTAINER_CREATED {
		had, err := spec.ReadLimits(s.config.ContainerDir(c.ID))
		return steps.Before{Bundle: had.Resources, OOMScoreAdj: had.OOMScoreAdj}, err
	}
	before := steps.Before{Update: spec.Before(c.resources().GetLinux(), update)}
	path, err := steps.CgroupPath(c.View)
	if err == nil {
		before.Files, err = cgroups.Detect().Save(path, slices.Collect(maps.Keys(update.Unified))...)
	}
	return before, err
}

// set changes the limits of a running container, or those that a created one will start with.
func (s *Server) set(ctx context.Context, c container, n newLimits) error {
	if c.state() == runtime.ContainerState_CONTAINER_CREATED {
		return spec.UpdateBundle(s.config.ContainerDir(c.ID), n.limits, n.oomScoreAdj)
	}
	tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
	if err != nil {
		return err
	}
	if err := tasks.Update(ctx, c.ID, checked(n.limits), n.annotations); err != nil {
		return err
	}
	return setHugePages(c, n.limits.HugepageLimits)
}

// checked has the OCI runtime refuse a memory limit below what is in use. The kernel
// does so by itself on v1; on v2 it would kill the container.
func checked(r *specs.LinuxResources) *specs.LinuxResources {
	if r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit <= 0 {
		return r
	}
	r, memory, yes := new(*r), new(*r.Memory), true
	memory.CheckBeforeUpdate = &yes
	r.Memory = memory
	return r
}

// setHugePages does what OCI runtimes leave out of updates.
func setHugePages(c container, limits []specs.LinuxHugepageLimit) error {
	if len(limits) == 0 {
		return nil
	}
	path, err := steps.CgroupPath(c.View)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range limits {
		errs = append(errs, cgroups.Detect().SetHugePages(path, l.Pagesize, l.Limit))
	}
	return errors.Join(errs...)
}

// putBack undoes an update that the record notes as begun, and drops the note.
func (s *Server) putBack(ctx context.Context, c container) error {
	before, ok, err := steps.ContainerBefore.Get(c.View)
	if err != nil || !ok || before.None() {
		return err
	}
	if before.Bundle != nil {
		err = spec.WriteLimits(s.config.ContainerDir(c.ID), spec.Limits{Resources: before.Bundle, OOMScoreAdj: before.OOMScoreAdj})
	} else {
		err = s.putBackRunning(ctx, c, before)
	}
	if err != nil {
		return err
	}
	return s.engine.Amend(context.WithoutCancel(ctx), steps.Container, c.ID, steps.ContainerBefore.With(steps.Before{}))
}

// putBackRunning has the OCI runtime take an update back, which keeps records of its own,
// and systemd's. It cannot unset what was not set, and so the cgroup's files have the last word.
func (s *Server) putBackRunning(ctx context.Context, c container, before steps.Before) error {
	if c.state() != runtime.ContainerState_CONTAINER_RUNNING {
		return nil // its cgroup goes or has gone
	}
	tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
	if err == nil {
		err = tasks.Update(ctx, c.ID, before.Update, nil)
	}
	if len(before.Files) == 0 {
		return err
	}
	if err != nil {
		klog.FromContext(ctx).Info("An OCI runtime could not take an update back; writing the limits themselves", "container", c.ID, "err", err)
	}
	return cgroups.Saved(before.Files).Restore()
}

// mendLimits puts back what updates have begun when a daemon before this one died.
func (s *Server) mendLimits(ctx context.Context) {
	for _, v := range s.engine.List(steps.Container) {
		before, ok, err := steps.ContainerBefore.Get(v)
		if err != nil || !ok || before.None() {
			continue
		}
		err = s.engine.Hold(ctx, steps.Container, v.ID, func(ctx context.Context, v *engine.View) error {
			return s.putBack(ctx, newContainer(v))
		})
		if err != nil && !errors.Is(err, engine.ErrNotFound) {
			klog.FromContext(ctx).Error(err, "Could not put back limits whose update was cut off", "container", v.ID)
		}
	}
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

// updatable refuses an update of a container that has ended.
func (c container) updatable() error {
	if c.state() == runtime.ContainerState_CONTAINER_CREATED {
		return nil
	}
	return c.running()
}

// holdFor is how long a plugin's update waits for a container that is moving. A move may
// itself wait for what the plugin's call has locked.
const holdFor = time.Second

var errMoving = fmt.Errorf("it is being started or stopped: %w", errdefs.ErrFailedPrecondition)

// holdShortly is engine.Hold of a container that is not waited for long.
func (s *Server) holdShortly(ctx context.Context, id string, f func(context.Context, *engine.View) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := time.AfterFunc(holdFor, func() { cancel(errMoving) })
	defer patience.Stop()
	return s.engine.Hold(ctx, steps.Container, id, func(ctx context.Context, v *engine.View) error {
		if !patience.Stop() {
			return errMoving
		}
		return f(ctx, v)
	})
}
