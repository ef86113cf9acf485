// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"path/filepath"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// readV1 reads a cgroup of the v1 hierarchies, where each controller has a mount
// of its own.
func (r *Reader) readV1(dir string) (*Usage, error) {
	cpu, err := r.cpuV1(dir)
	if err != nil {
		return nil, err
	}
	u := &Usage{CPU: cpu}
	root, err := r.mountOf("memory")
	if err != nil {
		return nil, err
	}
	u.dir = filepath.Join(root, dir)
	u.Memory, u.Swap, err = r.memoryV1(u.dir)
	return u, err
}

func (r *Reader) cpuV1(dir string) (*runtime.CpuUsage, error) {
	root, err := r.mountOf("cpuacct")
	if err != nil {
		return nil, err
	}
	used, err := readNumber(filepath.Join(root, dir), "cpuacct.usage")
	if err != nil {
		return nil, err
	}
	return &runtime.CpuUsage{Timestamp: r.now().UnixNano(), UsageCoreNanoSeconds: value(used)}, nil
}

func (r *Reader) memoryV1(dir string) (*runtime.MemoryUsage, *runtime.SwapUsage, error) {
	usage, err := readNumber(dir, "memory.usage_in_bytes")
	if err != nil {
		return nil, nil, err
	}
	limit, err := readNumber(dir, "memory.limit_in_bytes")
	if err != nil {
		return nil, nil, err
	}
	stat, err := readPairs(dir, "memory.stat")
	if err != nil {
		return nil, nil, err
	}
	m := memory(memoryCounters{
		now: r.now().UnixNano(), usage: usage, limit: limit, inactive: stat["total_inactive_file"], rss: stat["total_rss"],
		faults: stat["total_pgfault"], major: stat["total_pgmajfault"],
	})
	return m, r.swapV1(dir, limit, stat), nil
}

// swapV1 knows the usage from memory.stat; the limit includes memory here. Nil
// without swap accounting.
func (r *Reader) swapV1(dir string, memoryLimit uint64, stat map[string]uint64) *runtime.SwapUsage {
	used, ok := stat["total_swap"]
	if !ok {
		return nil
	}
	s := &runtime.SwapUsage{Timestamp: r.now().UnixNano(), SwapUsageBytes: value(used)}
	both, err := readNumber(dir, "memory.memsw.limit_in_bytes")
	if err == nil && both != unlimited && memoryLimit != unlimited {
		s.SwapAvailableBytes = value(less(less(both, memoryLimit), used))
	}
	return s
}

// memoryCounters are the counters that both versions have, in bytes. now is in nanoseconds.
type memoryCounters struct {
	now                         int64
	usage, limit, inactive, rss uint64
	faults, major               uint64
}

// memory makes the CRI's values: the working set is the usage without the file
// pages that the kernel would drop first. Without a limit nothing says what is available.
func memory(c memoryCounters) *runtime.MemoryUsage {
	working := less(c.usage, c.inactive)
	m := &runtime.MemoryUsage{
		Timestamp: c.now, WorkingSetBytes: value(working), UsageBytes: value(c.usage), RssBytes: value(c.rss),
		PageFaults: value(c.faults), MajorPageFaults: value(c.major),
	}
	if c.limit != unlimited {
		m.AvailableBytes = value(less(c.limit, working))
	}
	return m
}
