// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// Detail is all that a cgroup's files tell, for metrics. What a node does not know is nil.
type Detail struct {
	CPU       CPUDetail
	Memory    MemoryDetail
	Limits    Limits
	Devices   []DeviceIO // by device
	HugePages []HugePage // by size
	// Tasks are the threads in the cgroup, MaxTasks how many there may be; 0 is no limit.
	Tasks, MaxTasks *uint64
	// PIDs are the processes in the cgroup and below it.
	PIDs []int
	// Pressure of v1 is known where the v2 hierarchy is mounted beside it.
	CPUPressure, MemoryPressure, IOPressure *runtime.PsiStats
}

// CPUDetail is in nanoseconds and periods.
type CPUDetail struct {
	Total, User, System                *uint64
	Periods, Throttled, ThrottledTotal *uint64 // the last is a time
}

// MemoryDetail is in bytes and counts.
type MemoryDetail struct {
	Usage, Max, WorkingSet, RSS, Cache, Mapped, Kernel, Swap *uint64
	ActiveFile, InactiveFile                                 *uint64
	LimitHits, PageFaults, MajorFaults, OOMKills             *uint64
}

// Limits are those in force; 0 is none. CPU shares are those of v1 on v2 too.
type Limits struct {
	CPUPeriod, CPUQuota                 *uint64 // microseconds
	CPUShares                           *uint64
	Memory, MemoryReservation, SwapFile *uint64 // bytes; the last includes memory on v1
}

// DeviceIO counts what went to and from one block device.
type DeviceIO struct {
	Major, Minor                         uint64
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// HugePage is the use of pages of one size, such as "2MB", in bytes.
type HugePage struct {
	Size  string
	Usage uint64
	Max   *uint64
}

// Detail reads the cgroup of a container, whose OCI spec has cgroupsPath. A cgroup that
// is gone is errdefs.ErrNotFound.
func (r *Reader) Detail(ctx context.Context, cgroupsPath string) (*Detail, error) {
	return r.DetailOf(ctx, cgroups.Dir(cgroupsPath))
}

// DetailOf is Detail for a path below the controllers' mount points.
func (r *Reader) DetailOf(ctx context.Context, dir string) (*Detail, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d := &Detail{}
	read := r.detailV1
	if r.host.Unified {
		read = r.detailV2
	}
	if err := read(d, dir); err != nil {
		return nil, fmt.Errorf("read metrics of cgroup %s: %w", dir, err)
	}
	return d, nil
}

// files reads files of one cgroup; a file that is not there gives nil. Another error
// is kept in err.
type files struct {
	dir string
	err error
}

func (f *files) keep(err error) {
	if err != nil && f.err == nil && !errors.Is(err, errdefs.ErrNotFound) {
		f.err = err
	}
}

func (f *files) text(name string) string {
	text, err := readText(f.dir, name)
	f.keep(err)
	return text
}

func (f *files) number(name string) *uint64 {
	n, err := readNumber(f.dir, name)
	if err != nil {
		f.keep(err)
		return nil
	}
	return &n
}

// limit is number with 0 for none.
func (f *files) limit(name string) *uint64 {
	n := f.number(name)
	if n != nil && *n == unlimited {
		return new(uint64(0))
	}
	return n
}

func (f *files) pairs(name string) pairs { return parsePairs(f.text(name)) }

// pairs are counters by name.
type pairs map[string]uint64

func (p pairs) get(key string) *uint64 {
	if n, ok := p[key]; ok {
		return &n
	}
	return nil
}

// times is get in nanoseconds of a counter in unit.
func (p pairs) times(key string, unit time.Duration) *uint64 {
	if n, ok := p[key]; ok {
		return new(n * uint64(unit))
	}
	return nil
}

// workingSet is what memory makes of the two for the stats.
func workingSet(usage, inactive *uint64) *uint64 {
	if usage == nil || inactive == nil {
		return usage
	}
	return new(less(*usage, *inactive))
}

// hugePages finds the sizes by the files of the cgroup. Errors reading one are kept.
func (f *files) hugePages(usage, highest string) []HugePage {
	found, err := filepath.Glob(filepath.Join(f.dir, "hugetlb.*."+usage))
	f.keep(err)
	var pages []HugePage
	for _, path := range found {
		name := filepath.Base(path)
		size := strings.TrimSuffix(strings.TrimPrefix(name, "hugetlb."), "."+usage)
		if strings.Contains(size, ".") { // hugetlb.2MB.rsvd.current
			continue
		}
		n := f.number(name)
		if n == nil {
			continue
		}
		page := HugePage{Size: size, Usage: *n}
		if highest != "" {
			page.Max = f.number("hugetlb." + size + "." + highest)
		}
		pages = append(pages, page)
	}
	slices.SortFunc(pages, func(a, b HugePage) int { return strings.Compare(a.Size, b.Size) })
	return pages
}

// devices collects counters by device.
type devices map[[2]uint64]*DeviceIO

func (d devices) at(major, minor uint64) *DeviceIO {
	key := [2]uint64{major, minor}
	if d[key] == nil {
		d[key] = &DeviceIO{Major: major, Minor: minor}
	}
	return d[key]
}

func (d devices) list() []DeviceIO {
	var all []DeviceIO
	for _, one := range d {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b DeviceIO) int {
		return slices.Compare([]uint64{a.Major, a.Minor}, []uint64{b.Major, b.Minor})
	})
	return all
}
