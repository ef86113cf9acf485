// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestUpdateBundleKeepsWhatIsNotSaid(t *testing.T) {
	bundle := t.TempDir()
	shares, limit, newLimit := uint64(100), int64(1<<20), int64(2<<20)
	before := &specs.Spec{
		Process: &specs.Process{Args: []string{"true"}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{
			CPU: &specs.LinuxCPU{Shares: &shares, Cpus: "0"}, Memory: &specs.LinuxMemory{Limit: &limit},
			Unified: map[string]string{"a": "1", "b": "1"},
		}},
	}
	if err := writeSpec(bundle, &build{spec: before}); err != nil {
		t.Fatal(err)
	}
	err := UpdateBundle(bundle, &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &newLimit}, CPU: &specs.LinuxCPU{Cpus: "1"}, Unified: map[string]string{"b": "2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := readSpec(bundle)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Linux.Resources
	if *r.CPU.Shares != 100 || r.CPU.Cpus != "1" || *r.Memory.Limit != newLimit || r.Unified["a"] != "1" || r.Unified["b"] != "2" {
		t.Errorf("resources after the update: %+v %+v %v", r.CPU, r.Memory, r.Unified)
	}
	if err := UpdateBundle(t.TempDir(), &specs.LinuxResources{}); err == nil {
		t.Error("no error for a bundle without a spec")
	}
}
