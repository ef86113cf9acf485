// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
)

const (
	counter = runtime.MetricType_COUNTER
	gauge   = runtime.MetricType_GAUGE
)

var (
	byDevice    = []string{"device"}
	byInterface = []string{"interface"}
	byPageSize  = []string{"pagesize"}
)

// table has every metric, group by group.
var table = slices.Concat(cpuMetrics, memoryMetrics, pressureMetrics, diskMetrics, networkMetrics, processMetrics, limitMetrics, timeMetrics)

var cpuMetrics = []metric{
	{"container_cpu_usage_seconds_total", "CPU time used, in seconds.", counter, []string{"cpu"},
		detail(func(d *stats.Detail) []point { return seconds(d.CPU.Total, "total") })},
	{"container_cpu_user_seconds_total", "CPU time used in user mode, in seconds.", counter, nil,
		detail(func(d *stats.Detail) []point { return seconds(d.CPU.User) })},
	{"container_cpu_system_seconds_total", "CPU time used in kernel mode, in seconds.", counter, nil,
		detail(func(d *stats.Detail) []point { return seconds(d.CPU.System) })},
	{"container_cpu_cfs_periods_total", "Periods of the CPU quota that have passed; only with a quota.", counter, nil,
		throttling(func(c *stats.CPUDetail) []point { return one(c.Periods) })},
	{"container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up; only with a quota.", counter, nil,
		throttling(func(c *stats.CPUDetail) []point { return one(c.Throttled) })},
	{"container_cpu_cfs_throttled_seconds_total", "Time spent waiting for CPU quota, in seconds; only with a quota.", counter, nil,
		throttling(func(c *stats.CPUDetail) []point { return seconds(c.ThrottledTotal) })},
}

var memoryMetrics = []metric{
	{"container_memory_usage_bytes", "Memory in use, page cache and all.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Usage })},
	{"container_memory_max_usage_bytes", "Highest memory in use so far; cgroup v2 knows it since Linux 5.19.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Max })},
	{"container_memory_working_set_bytes", "Memory in use without the file pages that the kernel would drop first.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.WorkingSet })},
	{"container_memory_rss", "Anonymous memory, in bytes.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.RSS })},
	{"container_memory_cache", "Page cache, in bytes.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Cache })},
	{"container_memory_mapped_file", "Memory-mapped files, in bytes.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Mapped })},
	{"container_memory_kernel_usage", "Memory of the kernel on behalf of the cgroup, in bytes.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Kernel })},
	{"container_memory_swap", "Swap in use, in bytes.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.Swap })},
	{"container_memory_total_active_file_bytes", "Page cache in recent use.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.ActiveFile })},
	{"container_memory_total_inactive_file_bytes", "Page cache not in recent use.", gauge, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.InactiveFile })},
	{"container_memory_failcnt", "How often the memory limit was hit.", counter, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.LimitHits })},
	{"container_memory_failures_total", "Page faults, by failure_type pgfault and pgmajfault; scope is always container.", counter, []string{"failure_type", "scope"},
		detail(func(d *stats.Detail) []point {
			return slices.Concat(one(d.Memory.PageFaults, "pgfault", "container"), one(d.Memory.MajorFaults, "pgmajfault", "container"))
		})},
	{"container_oom_events_total", "Processes killed for lack of memory.", counter, nil,
		memory(func(m *stats.MemoryDetail) *uint64 { return m.OOMKills })},
	{"container_hugetlb_usage_bytes", "Huge pages in use, by page size; only on nodes with the controller.", gauge, byPageSize,
		detail(func(d *stats.Detail) []point {
			var all []point
			for _, h := range d.HugePages {
				all = append(all, point{[]string{h.Size}, h.Usage})
			}
			return all
		})},
	{"container_hugetlb_max_usage_bytes", "Highest use of huge pages so far, by page size; cgroup v1 only.", gauge, byPageSize,
		detail(func(d *stats.Detail) []point {
			var all []point
			for _, h := range d.HugePages {
				all = append(all, one(h.Max, h.Size)...)
			}
			return all
		})},
}

var (
	cpuPressure    = func(d *stats.Detail) *runtime.PsiStats { return d.CPUPressure }
	memoryPressure = func(d *stats.Detail) *runtime.PsiStats { return d.MemoryPressure }
	ioPressure     = func(d *stats.Detail) *runtime.PsiStats { return d.IOPressure }
)

var pressureMetrics = []metric{
	{"container_pressure_cpu_waiting_seconds_total", "Time in which a task waited for CPU, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(cpuPressure, (*runtime.PsiStats).GetSome)},
	{"container_pressure_cpu_stalled_seconds_total", "Time in which no task could run for lack of CPU, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(cpuPressure, (*runtime.PsiStats).GetFull)},
	{"container_pressure_memory_waiting_seconds_total", "Time in which a task waited for memory, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(memoryPressure, (*runtime.PsiStats).GetSome)},
	{"container_pressure_memory_stalled_seconds_total", "Time in which no task could run for lack of memory, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(memoryPressure, (*runtime.PsiStats).GetFull)},
	{"container_pressure_io_waiting_seconds_total", "Time in which a task waited for I/O, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(ioPressure, (*runtime.PsiStats).GetSome)},
	{"container_pressure_io_stalled_seconds_total", "Time in which no task could run for waiting on I/O, in seconds; needs PSI and cgroup v2.", counter, nil,
		pressure(ioPressure, (*runtime.PsiStats).GetFull)},
}

var diskMetrics = []metric{
	{"container_fs_usage_bytes", "Size of the container's writable layer.", gauge, byDevice,
		disk(func(d *Disk) uint64 { return d.Used })},
	{"container_fs_limit_bytes", "Size of the file system that the writable layer is on.", gauge, byDevice,
		disk(func(d *Disk) uint64 { return d.Size })},
	{"container_fs_inodes_total", "Inodes of the file system that the writable layer is on.", gauge, byDevice,
		disk(func(d *Disk) uint64 { return d.Inodes })},
	{"container_fs_inodes_free", "Free inodes of the file system that the writable layer is on.", gauge, byDevice,
		disk(func(d *Disk) uint64 { return d.InodesFree })},
	{"container_fs_reads_bytes_total", "Bytes read from a block device.", counter, byDevice,
		perDevice(func(d *stats.DeviceIO) uint64 { return d.ReadBytes })},
	{"container_fs_reads_total", "Reads from a block device.", counter, byDevice,
		perDevice(func(d *stats.DeviceIO) uint64 { return d.Reads })},
	{"container_fs_writes_bytes_total", "Bytes written to a block device.", counter, byDevice,
		perDevice(func(d *stats.DeviceIO) uint64 { return d.WriteBytes })},
	{"container_fs_writes_total", "Writes to a block device.", counter, byDevice,
		perDevice(func(d *stats.DeviceIO) uint64 { return d.Writes })},
	{"container_blkio_device_usage_total", "Bytes read from and written to a block device, by operation.", counter, []string{"device", "major", "minor", "operation"}, blockIO},
}

func blockIO(s *Sample) []point {
	if s.Detail == nil {
		return nil
	}
	var all []point
	for _, d := range s.Detail.Devices {
		name, major, minor := s.DeviceName(d.Major, d.Minor), strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
		all = append(all, point{[]string{name, major, minor, "Read"}, d.ReadBytes}, point{[]string{name, major, minor, "Write"}, d.WriteBytes})
	}
	return all
}

var networkMetrics = []metric{
	{"container_network_receive_bytes_total", "Bytes received.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Received.Bytes })},
	{"container_network_receive_packets_total", "Packets received.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Received.Packets })},
	{"container_network_receive_packets_dropped_total", "Packets dropped while receiving.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Received.Dropped })},
	{"container_network_receive_errors_total", "Errors while receiving.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Received.Errors })},
	{"container_network_transmit_bytes_total", "Bytes sent.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Transmitted.Bytes })},
	{"container_network_transmit_packets_total", "Packets sent.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Transmitted.Packets })},
	{"container_network_transmit_packets_dropped_total", "Packets dropped while sending.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Transmitted.Dropped })},
	{"container_network_transmit_errors_total", "Errors while sending.", counter, byInterface,
		network(func(i *stats.Interface) uint64 { return i.Transmitted.Errors })},
}

var processMetrics = []metric{
	{"container_processes", "Processes in the container.", gauge, nil,
		processes(func(p *Processes) []point { return one(&p.Count) })},
	{"container_threads", "Threads in the cgroup.", gauge, nil,
		detail(func(d *stats.Detail) []point { return one(d.Tasks) })},
	{"container_threads_max", "How many threads there may be; 0 is no limit.", gauge, nil,
		detail(func(d *stats.Detail) []point { return one(d.MaxTasks) })},
	{"container_file_descriptors", "Open files of the container's processes.", gauge, nil,
		processes(func(p *Processes) []point { return one(&p.Files) })},
	{"container_sockets", "Open sockets of the container's processes.", gauge, nil,
		processes(func(p *Processes) []point { return one(&p.Sockets) })},
	{"container_ulimits_soft", "Soft limit of the container's first process: max_open_files; none if it has no limit.", gauge, []string{"ulimit"},
		processes(func(p *Processes) []point { return one(p.OpenFiles, "max_open_files") })},
}

var limitMetrics = []metric{
	{"container_spec_cpu_period", "Period of the CPU quota, in microseconds.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 { return l.CPUPeriod })},
	{"container_spec_cpu_quota", "CPU time in a period, in microseconds; only with a quota.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 {
			if l.CPUQuota != nil && *l.CPUQuota == 0 {
				return nil
			}
			return l.CPUQuota
		})},
	{"container_spec_cpu_shares", "CPU shares, those that the weight was made of on cgroup v2.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 { return l.CPUShares })},
	{"container_spec_memory_limit_bytes", "Memory limit; 0 is none.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 { return l.Memory })},
	{"container_spec_memory_reservation_limit_bytes", "Memory that is protected under pressure; 0 is none.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 { return l.MemoryReservation })},
	{"container_spec_memory_swap_limit_bytes", "Swap limit, on cgroup v1 of memory and swap together; 0 is none, or no swap accounting.", gauge, nil,
		limit(func(l *stats.Limits) *uint64 {
			if l.SwapFile == nil && l.Memory != nil {
				return new(uint64(0))
			}
			return l.SwapFile
		})},
}

var timeMetrics = []metric{
	{"container_last_seen", "When this was read, in seconds since 1970.", gauge, nil,
		unix(func(s *Sample) time.Time { return s.Seen })},
	{"container_start_time_seconds", "When the container or sandbox was started, in seconds since 1970.", gauge, nil,
		unix(func(s *Sample) time.Time { return s.Started })},
}
