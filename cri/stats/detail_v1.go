// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// tick is the unit of the times in cpuacct.stat, as user space sees it on every
// architecture that containers run on.
const tick = time.Second / 100

// detailV1 needs the controllers cpuacct and memory; of others that are not there
// nothing is known.
func (r *Reader) detailV1(d *Detail, dir string) error {
	var errs []error
	in := func(controller string, read func(*files)) {
		root, ok := r.host.Mounts[controller]
		if !ok {
			return
		}
		f := &files{dir: filepath.Join(root, dir)}
		read(f)
		errs = append(errs, f.err)
	}
	in("cpuacct", func(f *files) { cpuacctDetail(&d.CPU, f) })
	in("cpu", func(f *files) { cpuDetailV1(d, f) })
	in("memory", func(f *files) {
		memoryDetailV1(d, f)
		d.PIDs, errs = membersOf(f.dir, errs)
	})
	in("blkio", func(f *files) { d.Devices = blkio(f) })
	in("hugetlb", func(f *files) { d.HugePages = f.hugePages("usage_in_bytes", "max_usage_in_bytes") })
	in("pids", func(f *files) { d.Tasks, d.MaxTasks = f.number("pids.current"), f.limit("pids.max") })
	if r.host.Root != "" {
		beside := filepath.Join(r.host.Root, dir)
		d.CPUPressure, d.MemoryPressure, d.IOPressure = readPressure(beside, "cpu.pressure"),
			readPressure(beside, "memory.pressure"), readPressure(beside, "io.pressure")
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if d.CPU.Total == nil && d.Memory.Usage == nil {
		return fmt.Errorf("there is none: %w", errdefs.ErrNotFound)
	}
	return nil
}

// membersOf is members as one more of several readings.
func membersOf(dir string, errs []error) ([]int, []error) {
	pids, err := members(dir)
	if errors.Is(err, errdefs.ErrNotFound) {
		err = nil
	}
	return pids, append(errs, err)
}

func cpuacctDetail(d *CPUDetail, f *files) {
	d.Total = f.number("cpuacct.usage")
	d.User, d.System = f.number("cpuacct.usage_user"), f.number("cpuacct.usage_sys")
	if d.User == nil || d.System == nil { // before 4.7
		stat := f.pairs("cpuacct.stat")
		d.User, d.System = stat.times("user", tick), stat.times("system", tick)
	}
}

func cpuDetailV1(d *Detail, f *files) {
	stat := f.pairs("cpu.stat")
	d.CPU.Periods, d.CPU.Throttled = stat.get("nr_periods"), stat.get("nr_throttled")
	d.CPU.ThrottledTotal = stat.get("throttled_time")
	d.Limits.CPUPeriod, d.Limits.CPUShares = f.number("cpu.cfs_period_us"), f.number("cpu.shares")
	switch quota := strings.TrimSpace(f.text("cpu.cfs_quota_us")); quota {
	case "":
	case "-1":
		d.Limits.CPUQuota = new(uint64(0))
	default:
		d.Limits.CPUQuota = f.number("cpu.cfs_quota_us")
	}
}

// memoryDetailV1 takes the values with what is below the cgroup.
func memoryDetailV1(d *Detail, f *files) {
	stat := f.pairs("memory.stat")
	m := &d.Memory
	m.Usage, m.Max = f.number("memory.usage_in_bytes"), f.number("memory.max_usage_in_bytes")
	m.InactiveFile, m.ActiveFile = stat.get("total_inactive_file"), stat.get("total_active_file")
	m.WorkingSet = workingSet(m.Usage, m.InactiveFile)
	m.RSS, m.Cache = stat.get("total_rss"), stat.get("total_cache")
	m.Mapped, m.Swap = stat.get("total_mapped_file"), stat.get("total_swap")
	m.Kernel = f.number("memory.kmem.usage_in_bytes")
	m.LimitHits = f.number("memory.failcnt")
	m.PageFaults, m.MajorFaults = stat.get("total_pgfault"), stat.get("total_pgmajfault")
	m.OOMKills = f.pairs("memory.oom_control").get("oom_kill")
	d.Limits.Memory, d.Limits.MemoryReservation = f.limit("memory.limit_in_bytes"), f.limit("memory.soft_limit_in_bytes")
	d.Limits.SwapFile = f.limit("memory.memsw.limit_in_bytes")
}

// blkio reads lines like "8:0 Read 4096". The counters of the throttling policy are
// there with every scheduler.
func blkio(f *files) []DeviceIO {
	all := devices{}
	each := func(name string, set func(io *DeviceIO, op string, n uint64)) {
		text := f.text("blkio.throttle." + name + "_recursive")
		if text == "" { // before 4.18
			text = f.text("blkio.throttle." + name)
		}
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) != 3 {
				continue
			}
			major, minor, ok := deviceNumber(fields[0])
			n, err := strconv.ParseUint(fields[2], 10, 64)
			if ok && err == nil {
				set(all.at(major, minor), fields[1], n)
			}
		}
	}
	each("io_service_bytes", func(io *DeviceIO, op string, n uint64) {
		switch op {
		case "Read":
			io.ReadBytes = n
		case "Write":
			io.WriteBytes = n
		}
	})
	each("io_serviced", func(io *DeviceIO, op string, n uint64) {
		switch op {
		case "Read":
			io.Reads = n
		case "Write":
			io.Writes = n
		}
	})
	return all.list()
}

func deviceNumber(s string) (major, minor uint64, ok bool) {
	a, b, _ := strings.Cut(s, ":")
	major, err := strconv.ParseUint(a, 10, 32)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.ParseUint(b, 10, 32)
	return major, minor, err == nil
}
