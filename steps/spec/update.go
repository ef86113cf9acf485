// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// UpdateBundle changes the limits that the created container of bundle will be
// started with. What update does not say stays as it was written.
func UpdateBundle(bundle string, update *specs.LinuxResources) error {
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
	overlay(s.Linux.Resources, update)
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
