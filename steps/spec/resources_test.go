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

func ptr[T any](v T) *T { return &v }

func TestResources(t *testing.T) {
	for _, c := range []struct {
		name string
		in   *runtime.LinuxContainerResources
		want *specs.LinuxResources
	}{
		{"none", nil, &specs.LinuxResources{}},
		{"cpu", &runtime.LinuxContainerResources{CpuShares: 2, CpuQuota: -1, CpuPeriod: 100000, CpusetCpus: "0", CpusetMems: "0"}, &specs.LinuxResources{
			CPU: &specs.LinuxCPU{Shares: ptr[uint64](2), Quota: ptr[int64](-1), Period: ptr[uint64](100000), Cpus: "0", Mems: "0"},
		}},
		{"memory without swap", &runtime.LinuxContainerResources{MemoryLimitInBytes: 4096}, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](4096), Swap: ptr[int64](4096)}}},
		{"memory with swap", &runtime.LinuxContainerResources{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: 8192}, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](4096), Swap: ptr[int64](8192)}}},
		{"unlimited swap", &runtime.LinuxContainerResources{MemoryLimitInBytes: 4096, MemorySwapLimitInBytes: -1}, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](4096), Swap: ptr[int64](-1)}}},
	} {
		got, err := resources(c.in, fakeHost())
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v", c.name, got, err)
		}
	}
	h := fakeHost()
	h.swap = func() bool { return false }
	got, err := resources(&runtime.LinuxContainerResources{MemoryLimitInBytes: 4096}, h)
	if err != nil || got.Memory.Swap != nil {
		t.Errorf("without swap accounting: %+v, %v", got.Memory, err)
	}
}

// Case 70: huge page limits with and without the controller.
func TestHugePages(t *testing.T) {
	without := fakeHost()
	delete(without.cgroups.Mounts, "hugetlb")
	for _, c := range []struct {
		host  *host
		size  string
		limit uint64
		set   bool
		err   error
	}{
		{fakeHost(), "2MB", 4 << 20, true, nil},
		{fakeHost(), "2MB", 0, true, nil},
		{fakeHost(), "1GB", 0, false, nil},
		{fakeHost(), "1GB", 1 << 30, false, errdefs.ErrFailedPrecondition},
		{without, "2MB", 0, false, nil},
		{without, "2MB", 4 << 20, false, errdefs.ErrFailedPrecondition},
		{without, "3MB", 0, false, errdefs.ErrInvalidArgument},
		{without, "2M", 0, false, errdefs.ErrInvalidArgument},
		{without, "", 0, false, errdefs.ErrInvalidArgument},
		{without, "99999999999GB", 0, false, errdefs.ErrInvalidArgument},
	} {
		got, err := resources(&runtime.LinuxContainerResources{HugepageLimits: []*runtime.HugepageLimit{{PageSize: c.size, Limit: c.limit}}}, c.host)
		if !errors.Is(err, c.err) || err == nil && (len(got.HugepageLimits) == 1) != c.set {
			t.Errorf("%s of %d: got %+v, %v", c.size, c.limit, got, err)
		}
	}
}

func TestUnifiedNeedsV2(t *testing.T) {
	r := &runtime.LinuxContainerResources{Unified: map[string]string{"memory.high": "4096"}}
	if _, err := resources(r, fakeHost()); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Error(err)
	}
	if got, err := resources(r, unifiedHost()); err != nil || got.Unified["memory.high"] != "4096" {
		t.Error(got, err)
	}
}

func TestResourcesRefused(t *testing.T) {
	for field, r := range map[string]*runtime.LinuxContainerResources{
		"cpu_shares":                 {CpuShares: -1},
		"cpu_quota":                  {CpuQuota: 999},
		"CPU_QUOTA":                  {CpuQuota: -2},
		"cpu_period":                 {CpuPeriod: 2000000},
		"memory_limit_in_bytes":      {MemoryLimitInBytes: -2},
		"memory_swap_limit_in_bytes": {MemoryLimitInBytes: 2, MemorySwapLimitInBytes: 1},
		"oom_score_adj":              {OomScoreAdj: 1001},
		"cpuset_cpus":                {CpusetCpus: "3-1"},
		"cpuset_mems":                {CpusetMems: "0,,1"},
		"hugepage_limits[0]":         {HugepageLimits: []*runtime.HugepageLimit{{PageSize: "x"}}},
		"unified":                    {Unified: map[string]string{"../x": "1"}},
	} {
		_, err := Resources(r)
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), strings.ToLower(field)) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// oom_score_adj is clamped to what may be set, and always set.
func TestOOMScoreAdj(t *testing.T) {
	for wanted, want := range map[int64]int{-997: -500, -100: -100, 0: 0, 1000: 1000} {
		s := made(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			c.Linux.Resources = &runtime.LinuxContainerResources{OomScoreAdj: wanted}
		})
		if got := *s.Process.OOMScoreAdj; got != want {
			t.Errorf("%d: got %d, want %d", wanted, got, want)
		}
	}
}
