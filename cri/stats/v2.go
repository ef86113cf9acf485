// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// readV2 reads a cgroup of the unified hierarchy (Documentation/admin-guide/cgroup-v2.rst).
func (r *Reader) readV2(dir string) (*Usage, error) {
	dir = filepath.Join(r.host.Root, dir)
	cpu, err := readPairs(dir, "cpu.stat")
	if err != nil {
		return nil, err
	}
	u := &Usage{CPU: &runtime.CpuUsage{
		Timestamp: r.now().UnixNano(), UsageCoreNanoSeconds: value(cpu["usage_usec"] * uint64(time.Microsecond)), Psi: readPressure(dir, "cpu.pressure"),
	}}
	if u.Memory, err = r.memoryV2(dir); err != nil {
		return nil, err
	}
	if u.Swap, err = r.swapV2(dir); err != nil {
		return nil, err
	}
	if psi := readPressure(dir, "io.pressure"); psi != nil {
		u.IO = &runtime.IoUsage{Timestamp: r.now().UnixNano(), Psi: psi}
	}
	u.dir = dir
	return u, nil
}

func (r *Reader) memoryV2(dir string) (*runtime.MemoryUsage, error) {
	usage, err := readNumber(dir, "memory.current")
	if err != nil {
		return nil, err
	}
	limit, err := readNumber(dir, "memory.max")
	if err != nil {
		return nil, err
	}
	stat, err := readPairs(dir, "memory.stat")
	if err != nil {
		return nil, err
	}
	m := memory(memoryCounters{
		now: r.now().UnixNano(), usage: usage, limit: limit, inactive: stat["inactive_file"], rss: stat["anon"] + stat["swapcached"],
		faults: stat["pgfault"], major: stat["pgmajfault"],
	})
	m.Psi = readPressure(dir, "memory.pressure")
	return m, nil
}

// swapV2 is nil where the kernel does not account for swap.
func (r *Reader) swapV2(dir string) (*runtime.SwapUsage, error) {
	used, err := readNumber(dir, "memory.swap.current")
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &runtime.SwapUsage{Timestamp: r.now().UnixNano(), SwapUsageBytes: value(used)}
	limit, err := readNumber(dir, "memory.swap.max")
	if err != nil {
		return nil, err
	}
	if limit != unlimited {
		s.SwapAvailableBytes = value(less(limit, used))
	}
	return s, nil
}
