// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of the kernel for the CFS period and quota, in microseconds
// (Documentation/scheduler/sched-bwc.rst).
const (
	minQuota, maxPeriod = 1000, 1000000
)

// Limits of the kernel for shares (kernel/sched/sched.h): it would take the nearest one,
// and OCI runtimes then fail.
const minShares, maxShares = 2, 1 << 18

// Resources turns the request's limits into those of the OCI spec, for creating
// and for updating. A value of 0 is "not specified" and left out. What this node
// cannot enforce is errdefs.ErrFailedPrecondition, what nobody could is
// errdefs.ErrInvalidArgument. oom_score_adj is not among them: see OOMScoreAdj.
func Resources(r *runtime.LinuxContainerResources) (*specs.LinuxResources, error) {
	if err := validateResources("resources", r); err != nil {
		return nil, err
	}
	return resources(r, detect())
}

func resources(r *runtime.LinuxContainerResources, h *host) (*specs.LinuxResources, error) {
	out := &specs.LinuxResources{CPU: cpu(r), Memory: memory(r, h)}
	pages, err := hugePages(r, h)
	if err != nil {
		return nil, err
	}
	out.HugepageLimits = pages
	if len(r.GetUnified()) == 0 {
		return out, nil
	}
	if !h.cgroups.Unified {
		return nil, fmt.Errorf("resources.unified: this node has cgroup v1: %w", errdefs.ErrFailedPrecondition)
	}
	out.Unified = maps.Clone(r.GetUnified())
	return out, nil
}

func cpu(r *runtime.LinuxContainerResources) *specs.LinuxCPU {
	c := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := r.GetCpuShares(); v != 0 {
		shares := uint64(v)
		c.Shares = &shares
	}
	if v := r.GetCpuQuota(); v != 0 {
		c.Quota = &v
	}
	if v := r.GetCpuPeriod(); v != 0 {
		period := uint64(v)
		c.Period = &period
	}
	if *c == (specs.LinuxCPU{}) {
		return nil
	}
	return c
}

// memory sets swap to the limit where the request does not say, which means none:
// the OCI value is memory plus swap.
func memory(r *runtime.LinuxContainerResources, h *host) *specs.LinuxMemory {
	limit, swap := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	if limit == 0 && swap == 0 {
		return nil
	}
	m := &specs.LinuxMemory{}
	if limit != 0 {
		m.Limit = &limit
	}
	if swap == 0 {
		swap = limit
	}
	if h.swap() {
		m.Swap = &swap
	}
	return m
}

// hugePages leaves out zero limits on a node without the controller, since kubelet
// always sends them; others are refused there, rather than not enforced unnoticed.
func hugePages(r *runtime.LinuxContainerResources, h *host) ([]specs.LinuxHugepageLimit, error) {
	var out []specs.LinuxHugepageLimit
	for i, l := range r.GetHugepageLimits() {
		size, err := pageSize(l.GetPageSize())
		if err != nil {
			return nil, invalid(fmt.Sprintf("resources.hugepage_limits[%d].page_size", i), "%v", err)
		}
		switch {
		case h.cgroups.Has("hugetlb") && slices.Contains(h.pageSizes, size):
			out = append(out, specs.LinuxHugepageLimit{Pagesize: l.GetPageSize(), Limit: l.GetLimit()})
		case !slices.Contains(h.pageSizes, size) && !slices.Contains(commonPageSizes, size):
			return nil, invalid(fmt.Sprintf("resources.hugepage_limits[%d].page_size", i), "this node has no huge pages of %s", l.GetPageSize())
		case l.GetLimit() != 0:
			return nil, fmt.Errorf("resources.hugepage_limits[%d]: %d bytes of %s: this node cannot limit them (no hugetlb cgroup controller): %w", i, l.GetLimit(), l.GetPageSize(), errdefs.ErrFailedPrecondition)
		}
	}
	return out, nil
}

// commonPageSizes are those of the usual architectures, in bytes.
var commonPageSizes = []uint64{64 << 10, 1 << 20, 2 << 20, 16 << 20, 32 << 20, 512 << 20, 1 << 30, 16 << 30}

// pageSize reads "2MB", with units to the base of 1024.
func pageSize(s string) (uint64, error) {
	for i, unit := range []string{"KB", "MB", "GB"} {
		digits, ok := strings.CutSuffix(s, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 20)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != digits {
			break
		}
		return n << (10 * (i + 1)), nil
	}
	return 0, fmt.Errorf("%q is not of the form 2MB", s)
}

// OOMScoreAdj is the value to set for a container: what is asked for, raised to
// the least that this process may set for others.
func OOMScoreAdj(wanted int64) int { return max(int(wanted), detect().oomFloor) }

// setResources applies limits to the new container.
func (b *build) setResources() error {
	r, err := resources(b.config.GetLinux().GetResources(), b.host)
	if err != nil {
		return err
	}
	b.spec.Linux.Resources = r
	// Always set: else the container would inherit that of the shim.
	adj := max(int(b.config.GetLinux().GetResources().GetOomScoreAdj()), b.host.oomFloor)
	b.spec.Process.OOMScoreAdj = &adj
	return nil
}

func validateResources(field string, r *runtime.LinuxContainerResources) error {
	for _, c := range []struct {
		name     string
		value    int64
		min, max int64
	}{
		{"cpu_shares", r.GetCpuShares(), 0, maxShares},
		{"cpu_quota", r.GetCpuQuota(), -1, math.MaxInt64},
		{"cpu_period", r.GetCpuPeriod(), 0, maxPeriod},
		{"memory_limit_in_bytes", r.GetMemoryLimitInBytes(), -1, math.MaxInt64},
		{"memory_swap_limit_in_bytes", r.GetMemorySwapLimitInBytes(), -1, math.MaxInt64},
		{"oom_score_adj", r.GetOomScoreAdj(), -1000, 1000},
	} {
		if c.value < c.min || c.value > c.max {
			return invalid(field+"."+c.name, "%d is out of range", c.value)
		}
	}
	if r.GetCpuShares() > 0 && r.GetCpuShares() < minShares {
		return invalid(field+".cpu_shares", "%d is below the least, %d", r.GetCpuShares(), minShares)
	}
	if q := r.GetCpuQuota(); q > 0 && q < minQuota {
		return invalid(field+".cpu_quota", "%d is below the least, %d microseconds", q, minQuota)
	}
	if p := r.GetCpuPeriod(); p > 0 && p < minQuota {
		return invalid(field+".cpu_period", "%d is below the least, %d microseconds", p, minQuota)
	}
	if swap, limit := r.GetMemorySwapLimitInBytes(), r.GetMemoryLimitInBytes(); swap > 0 && limit > 0 && swap < limit {
		return invalid(field+".memory_swap_limit_in_bytes", "%d is below memory_limit_in_bytes, which it includes", swap)
	}
	return validateSets(field, r)
}

func validateSets(field string, r *runtime.LinuxContainerResources) error {
	for name, set := range map[string]string{"cpuset_cpus": r.GetCpusetCpus(), "cpuset_mems": r.GetCpusetMems()} {
		if !isSet(set) {
			return invalid(field+"."+name, "%q is not a list like 0-3,7", set)
		}
	}
	for i, l := range r.GetHugepageLimits() {
		if _, err := pageSize(l.GetPageSize()); err != nil {
			return invalid(fmt.Sprintf("%s.hugepage_limits[%d].page_size", field, i), "%v", err)
		}
	}
	for key := range r.GetUnified() {
		if key == "" || strings.ContainsAny(key, "/\x00") || strings.HasPrefix(key, ".") {
			return invalid(field+".unified", "%q is no file of a cgroup", key)
		}
	}
	return nil
}

// isSet checks the list format of cpuset(7); empty is "not specified".
func isSet(s string) bool {
	if s == "" {
		return true
	}
	for r := range strings.SplitSeq(s, ",") {
		low, high, ranged := strings.Cut(strings.TrimSpace(r), "-")
		a, err := strconv.ParseUint(low, 10, 16)
		if err != nil {
			return false
		}
		if !ranged {
			continue
		}
		if b, err := strconv.ParseUint(high, 10, 16); err != nil || b < a {
			return false
		}
	}
	return true
}
