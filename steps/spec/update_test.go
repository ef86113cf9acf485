// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
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
	}, 900)
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
	if got := s.Process.OOMScoreAdj; got == nil || *got != 900 {
		t.Errorf("oom_score_adj is %v", got)
	}
	if err := UpdateBundle(t.TempDir(), &specs.LinuxResources{}, 0); err == nil {
		t.Error("no error for a bundle without a spec")
	}
}

func TestLimitsOfABundleGoBack(t *testing.T) {
	bundle := t.TempDir()
	shares, adj := uint64(100), 7
	before := &specs.Spec{Process: &specs.Process{OOMScoreAdj: &adj}, Linux: &specs.Linux{Resources: &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}}}
	if err := writeSpec(bundle, &build{spec: before}); err != nil {
		t.Fatal(err)
	}
	had, err := ReadLimits(bundle)
	if err != nil {
		t.Fatal(err)
	}
	limit := int64(1 << 20)
	if err := UpdateBundle(bundle, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}, 900); err != nil {
		t.Fatal(err)
	}
	if err := WriteLimits(bundle, had); err != nil {
		t.Fatal(err)
	}
	if after, err := readSpec(bundle); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("afterwards %+v, %v", after, err)
	}
}

func TestUpdate(t *testing.T) {
	type limits = runtime.LinuxContainerResources
	for what, c := range map[string]struct {
		was, update, merged *limits
		memory              *specs.LinuxMemory
	}{
		"kept": {&limits{CpuShares: 10}, &limits{CpuQuota: 5000}, &limits{CpuShares: 10, CpuQuota: 5000}, nil},
		"no swap before": {
			&limits{MemoryLimitInBytes: 4096}, &limits{MemoryLimitInBytes: 8192}, &limits{MemoryLimitInBytes: 8192},
			&specs.LinuxMemory{Limit: ptr[int64](8192), Swap: ptr[int64](8192)},
		},
		"swap is kept": {
			&limits{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: 16384}, &limits{MemoryLimitInBytes: 8192},
			&limits{MemoryLimitInBytes: 8192, MemorySwapLimitInBytes: 16384}, &specs.LinuxMemory{Limit: ptr[int64](8192), Swap: ptr[int64](16384)},
		},
		"unlimited swap is kept": {
			&limits{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: -1}, &limits{MemoryLimitInBytes: 8192},
			&limits{MemoryLimitInBytes: 8192, MemorySwapLimitInBytes: -1}, &specs.LinuxMemory{Limit: ptr[int64](8192), Swap: ptr[int64](-1)},
		},
		"swap alone": {
			&limits{MemoryLimitInBytes: 4096}, &limits{MemorySwapLimitInBytes: 8192},
			&limits{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: 8192}, &specs.LinuxMemory{Swap: ptr[int64](8192)},
		},
		"lists are replaced": {
			&limits{HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB"}}}, &limits{HugepageLimits: []*runtime.HugepageLimit{{PageSize: "1GB"}}},
			&limits{HugepageLimits: []*runtime.HugepageLimit{{PageSize: "1GB"}}}, nil,
		},
	} {
		was := c.was.String()
		got, merged, err := Update(c.was, c.update)
		if err != nil || merged.String() != c.merged.String() {
			t.Errorf("%s: merged to %v, %v; want %v", what, merged, err, c.merged)
			continue
		}
		if c.memory != nil && !detect().swap() {
			c.memory.Swap = nil
		}
		if !reflect.DeepEqual(got.Memory, c.memory) {
			t.Errorf("%s: memory %+v, want %+v", what, got.Memory, c.memory)
		}
		if c.was.String() != was {
			t.Errorf("%s: what was in force has been changed", what)
		}
	}
}

// What is wrong only together with what is in force is refused before anything changes.
func TestUpdateRefused(t *testing.T) {
	type limits = runtime.LinuxContainerResources
	for field, c := range map[string]struct{ was, update *limits }{
		"linux.memory_swap_limit_in_bytes": {&limits{MemoryLimitInBytes: 8192}, &limits{MemorySwapLimitInBytes: 4096}},
		"linux.Memory_Swap_limit_in_bytes": {&limits{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: 4096}, &limits{MemoryLimitInBytes: 8192}},
		"linux.cpu_shares":                 {nil, &limits{CpuShares: -1}},
	} {
		_, _, err := Update(c.was, c.update)
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), strings.ToLower(field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// Only what an update changes is taken back, to what it was or to the kernel's default.
func TestBefore(t *testing.T) {
	was := &runtime.LinuxContainerResources{CpuShares: 10, MemoryLimitInBytes: 4096}
	got := Before(was, &specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: ptr[uint64](20), Quota: ptr[int64](5000)}, Memory: &specs.LinuxMemory{Limit: ptr[int64](8192)},
	})
	want := &specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: ptr[uint64](10), Quota: ptr[int64](-1)}, Memory: &specs.LinuxMemory{Limit: ptr[int64](4096)},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v %+v", got.CPU, got.Memory)
	}
}
