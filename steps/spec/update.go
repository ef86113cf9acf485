// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Update gives the limits that an update changes, and all that are in force after it.
// What the update leaves at zero stays. The errors are those of Resources, also for what
// is wrong only together with what was in force before.
func Update(was, update *runtime.LinuxContainerResources) (limits *specs.LinuxResources, merged *runtime.LinuxContainerResources, err error) {
	const field = "linux"
	if err := validateResources(field, update); err != nil {
		return nil, nil, err
	}
	merged = Merge(was, update)
	if err := validateResources(field, merged); err != nil {
		return nil, nil, fmt.Errorf("with the limits in force: %w", err)
	}
	if update.GetMemoryLimitInBytes() != 0 && update.GetMemorySwapLimitInBytes() == 0 && merged.GetMemorySwapLimitInBytes() != 0 {
		// A swap limit in force is kept: without one no swap would be meant.
		update, _ = proto.Clone(update).(*runtime.LinuxContainerResources)
		update.MemorySwapLimitInBytes = merged.GetMemorySwapLimitInBytes()
	}
	limits, err = resources(update, detect())
	return limits, merged, err
}

// Merge lays an update over what was in force: zero leaves a value as it is.
func Merge(was, update *runtime.LinuxContainerResources) *runtime.LinuxContainerResources {
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

// The kernel's values for what no limit was ever asked for.
const (
	noLimit       = int64(-1)
	defaultShares = uint64(1024)
	defaultPeriod = uint64(100000)
)

// Before gives the limits that take update back to what was in force.
func Before(was *runtime.LinuxContainerResources, update *specs.LinuxResources) *specs.LinuxResources {
	had, err := resources(was, detect())
	if err != nil {
		had = &specs.LinuxResources{} // as if nothing had been asked for
	}
	out := &specs.LinuxResources{HugepageLimits: had.HugepageLimits}
	if c := update.CPU; c != nil {
		unlimited, shares, period := noLimit, defaultShares, defaultPeriod
		out.CPU = &specs.LinuxCPU{}
		if had.CPU == nil {
			had.CPU = &specs.LinuxCPU{}
		}
		back(&out.CPU.Shares, c.Shares, had.CPU.Shares, &shares)
		back(&out.CPU.Quota, c.Quota, had.CPU.Quota, &unlimited)
		back(&out.CPU.Period, c.Period, had.CPU.Period, &period)
		out.CPU.Cpus, out.CPU.Mems = had.CPU.Cpus, had.CPU.Mems
	}
	if m := update.Memory; m != nil {
		unlimited := noLimit
		out.Memory = &specs.LinuxMemory{}
		if had.Memory == nil {
			had.Memory = &specs.LinuxMemory{}
		}
		back(&out.Memory.Limit, m.Limit, had.Memory.Limit, &unlimited)
		back(&out.Memory.Swap, m.Swap, had.Memory.Swap, &unlimited)
	}
	for key := range update.Unified {
		if value, ok := had.Unified[key]; ok {
			if out.Unified == nil {
				out.Unified = map[string]string{}
			}
			out.Unified[key] = value
		}
	}
	return out
}

// back sets a value that was changed to what it was.
func back[T any](to **T, changed, had, byDefault *T) {
	switch {
	case changed == nil:
	case had != nil:
		*to = had
	default:
		*to = byDefault
	}
}

// Limits are the limits in a bundle.
type Limits struct {
	Resources   *specs.LinuxResources
	OOMScoreAdj *int
}

// ReadLimits gives the limits that the created container of bundle will be started with.
func ReadLimits(bundle string) (Limits, error) {
	s, err := readSpec(bundle)
	if err != nil {
		return Limits{}, err
	}
	l := Limits{Resources: &specs.LinuxResources{}, OOMScoreAdj: s.Process.OOMScoreAdj}
	if s.Linux != nil && s.Linux.Resources != nil {
		l.Resources = s.Linux.Resources
	}
	return l, nil
}

// WriteLimits puts limits into a bundle in place of those that it has.
func WriteLimits(bundle string, l Limits) error {
	return rewrite(bundle, func(s *specs.Spec) { s.Linux.Resources, s.Process.OOMScoreAdj = l.Resources, l.OOMScoreAdj })
}

// UpdateBundle changes limits in a bundle. What update does not say stays as it was
// written; an oomScoreAdj of 0 is not said. It is clamped as for a new container.
func UpdateBundle(bundle string, update *specs.LinuxResources, oomScoreAdj int64) error {
	return rewrite(bundle, func(s *specs.Spec) {
		overlay(s.Linux.Resources, update)
		if oomScoreAdj != 0 {
			adj := OOMScoreAdj(oomScoreAdj)
			s.Process.OOMScoreAdj = &adj
		}
	})
}

// rewrite changes the spec of a bundle; it has Linux.Resources and Process then.
func rewrite(bundle string, change func(*specs.Spec)) error {
	s, err := readSpec(bundle)
	if err != nil {
		return err
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	change(s)
	if err := writeSpec(bundle, &build{spec: s}); err != nil {
		return fmt.Errorf("write the OCI spec: %w", err)
	}
	return nil
}

// overlay lays update over r. Lists are replaced, tables merged.
func overlay(r, update *specs.LinuxResources) {
	if c := update.CPU; c != nil {
		if r.CPU == nil {
			r.CPU = &specs.LinuxCPU{}
		}
		set(&r.CPU.Shares, c.Shares)
		set(&r.CPU.Quota, c.Quota)
		set(&r.CPU.Period, c.Period)
		if c.Cpus != "" {
			r.CPU.Cpus = c.Cpus
		}
		if c.Mems != "" {
			r.CPU.Mems = c.Mems
		}
	}
	if m := update.Memory; m != nil {
		if r.Memory == nil {
			r.Memory = &specs.LinuxMemory{}
		}
		set(&r.Memory.Limit, m.Limit)
		set(&r.Memory.Swap, m.Swap)
	}
	set(&r.Pids, update.Pids)
	if len(update.HugepageLimits) > 0 {
		r.HugepageLimits = update.HugepageLimits
	}
	if len(update.Unified) > 0 {
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		maps.Copy(r.Unified, update.Unified)
	}
}

func set[T any](to **T, v *T) {
	if v != nil {
		*to = v
	}
}
