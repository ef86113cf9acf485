// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// detailV2 reads a cgroup of the unified hierarchy
// (Documentation/admin-guide/cgroup-v2.rst). Files of controllers that are off, or of
// newer kernels, may be missing.
func (r *Reader) detailV2(d *Detail, dir string) error {
	f := &files{dir: filepath.Join(r.host.Root, dir)}
	stat, err := readPairs(f.dir, "cpu.stat") // every cgroup has it
	if err != nil {
		return err
	}
	cpu := pairs(stat)
	d.CPU = CPUDetail{
		Total: cpu.times("usage_usec", time.Microsecond), User: cpu.times("user_usec", time.Microsecond),
		System: cpu.times("system_usec", time.Microsecond), Periods: cpu.get("nr_periods"),
		Throttled: cpu.get("nr_throttled"), ThrottledTotal: cpu.times("throttled_usec", time.Microsecond),
	}
	memoryDetailV2(&d.Memory, f)
	d.Limits = limitsV2(f)
	d.Devices = ioStat(f.text("io.stat"))
	d.HugePages = f.hugePages("current", "")
	d.Tasks, d.MaxTasks = f.number("pids.current"), f.limit("pids.max")
	d.CPUPressure, d.MemoryPressure, d.IOPressure = readPressure(f.dir, "cpu.pressure"),
		readPressure(f.dir, "memory.pressure"), readPressure(f.dir, "io.pressure")
	if d.PIDs, err = members(f.dir); err != nil {
		return err
	}
	return f.err
}

func memoryDetailV2(m *MemoryDetail, f *files) {
	stat, events := f.pairs("memory.stat"), f.pairs("memory.events")
	m.Usage, m.Max = f.number("memory.current"), f.number("memory.peak")
	m.InactiveFile, m.ActiveFile = stat.get("inactive_file"), stat.get("active_file")
	m.WorkingSet = workingSet(m.Usage, m.InactiveFile)
	m.Cache, m.Mapped = stat.get("file"), stat.get("file_mapped")
	if anon := stat.get("anon"); anon != nil {
		m.RSS = new(*anon + stat["swapcached"])
	}
	if m.Kernel = stat.get("kernel"); m.Kernel == nil { // before 5.18
		if stack := stat.get("kernel_stack"); stack != nil {
			m.Kernel = new(*stack + stat["pagetables"] + stat["percpu"] + stat["sock"] + stat["slab"])
		}
	}
	m.Swap = f.number("memory.swap.current")
	m.LimitHits, m.OOMKills = events.get("max"), events.get("oom_kill")
	m.PageFaults, m.MajorFaults = stat.get("pgfault"), stat.get("pgmajfault")
}

func limitsV2(f *files) Limits {
	l := Limits{
		Memory: f.limit("memory.max"), MemoryReservation: f.limit("memory.low"), SwapFile: f.limit("memory.swap.max"),
	}
	if weight := f.number("cpu.weight"); weight != nil && *weight > 0 {
		l.CPUShares = new(shares(*weight))
	}
	quota, period, _ := strings.Cut(strings.TrimSpace(f.text("cpu.max")), " ")
	if n, err := strconv.ParseUint(period, 10, 64); err == nil {
		l.CPUPeriod = &n
		l.CPUQuota = new(uint64(0))
		if q, err := strconv.ParseUint(quota, 10, 64); err == nil {
			l.CPUQuota = &q
		}
	}
	return l
}

// shares are the v1 shares that kubelet's formula makes this weight of:
// weight = 1 + (shares-2)*9999/262142.
func shares(weight uint64) uint64 { return 2 + (weight-1)*262142/9999 }

// ioStat reads lines like "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0".
func ioStat(text string) []DeviceIO {
	all := devices{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		major, minor, ok := deviceNumber(fields[0])
		if !ok {
			continue
		}
		io := all.at(major, minor)
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch key {
			case "rbytes":
				io.ReadBytes = n
			case "wbytes":
				io.WriteBytes = n
			case "rios":
				io.Reads = n
			case "wios":
				io.Writes = n
			}
		}
	}
	return all.list()
}
