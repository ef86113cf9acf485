// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// expectNumbers compares what was read; what want does not have must be unknown.
func expectNumbers(t *testing.T, got map[string]*uint64, want map[string]uint64) {
	t.Helper()
	for name, n := range got {
		w, known := want[name]
		if known != (n != nil) || (known && *n != w) {
			t.Errorf("%s: got %s, want %d (known: %v)", name, show(n), w, known)
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is not looked at", name)
		}
	}
}

func show(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

func numbers(d *Detail) map[string]*uint64 {
	return map[string]*uint64{
		"total": d.CPU.Total, "user": d.CPU.User, "system": d.CPU.System,
		"periods": d.CPU.Periods, "throttled": d.CPU.Throttled, "throttled total": d.CPU.ThrottledTotal,
		"usage": d.Memory.Usage, "max": d.Memory.Max, "working set": d.Memory.WorkingSet, "rss": d.Memory.RSS,
		"cache": d.Memory.Cache, "mapped": d.Memory.Mapped, "kernel": d.Memory.Kernel, "swap": d.Memory.Swap,
		"active": d.Memory.ActiveFile, "inactive": d.Memory.InactiveFile, "hits": d.Memory.LimitHits,
		"faults": d.Memory.PageFaults, "major": d.Memory.MajorFaults, "oom": d.Memory.OOMKills,
		"period": d.Limits.CPUPeriod, "quota": d.Limits.CPUQuota, "shares": d.Limits.CPUShares,
		"limit": d.Limits.Memory, "reservation": d.Limits.MemoryReservation, "swap limit": d.Limits.SwapFile,
		"tasks": d.Tasks, "max tasks": d.MaxTasks,
	}
}

var detailFilesV2 = map[string]string{
	"cpu.stat":       "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 3000000\n",
	"cpu.max":        "20000 100000\n",
	"cpu.weight":     "39\n",
	"cpu.pressure":   "some avg10=1.50 avg60=0.50 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n",
	"memory.current": "10000\n", "memory.peak": "12000\n", "memory.max": "16384\n", "memory.low": "0\n",
	"memory.stat":     "anon 3000\nfile 6000\nkernel 700\nfile_mapped 50\nactive_file 60\ninactive_file 4000\nswapcached 10\npgfault 77\npgmajfault 7\n",
	"memory.events":   "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\n",
	"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n", "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
	"memory.swap.current": "100\n", "memory.swap.max": "max\n",
	"io.stat":             "259:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:16 rbytes=5 wbytes=6 rios=7 wios=8\nnonsense\n",
	"hugetlb.2MB.current": "4194304\n", "hugetlb.2MB.rsvd.current": "0\n", "hugetlb.1GB.current": "0\n",
	"pids.current": "9\n", "pids.max": "max\n", "cgroup.procs": "11\n12\n0\n",
}

func TestDetailV2(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "pods/c"), detailFilesV2)
	lay(t, filepath.Join(root, "pods/c/inner"), map[string]string{"cgroup.procs": "13\n"})
	d, err := r.Detail(t.Context(), "/pods/c")
	if err != nil {
		t.Fatal(err)
	}
	expectNumbers(t, numbers(d), map[string]uint64{
		"total": 2e9, "user": 15e8, "system": 5e8, "periods": 10, "throttled": 4, "throttled total": 3e9,
		"usage": 10000, "max": 12000, "working set": 6000, "rss": 3010, "cache": 6000, "mapped": 50, "kernel": 700, "swap": 100,
		"active": 60, "inactive": 4000, "hits": 5, "faults": 77, "major": 7, "oom": 1,
		"period": 100000, "quota": 20000, "shares": 998, "limit": 16384, "reservation": 0, "swap limit": 0,
		"tasks": 9, "max tasks": 0,
	})
	if want := []DeviceIO{{8, 16, 5, 6, 7, 8}, {259, 0, 1, 2, 3, 4}}; !slices.Equal(d.Devices, want) {
		t.Errorf("devices %v", d.Devices)
	}
	if len(d.HugePages) != 2 || d.HugePages[1].Size != "2MB" || d.HugePages[1].Usage != 4194304 || d.HugePages[1].Max != nil {
		t.Errorf("huge pages %v", d.HugePages)
	}
	if !slices.Equal(d.PIDs, []int{11, 12, 13}) {
		t.Errorf("processes %v", d.PIDs)
	}
	if d.CPUPressure.GetFull().GetTotal() != 45000 || d.MemoryPressure.GetSome().GetTotal() != 5000 || d.IOPressure.GetSome().GetTotal() != 9000 {
		t.Errorf("pressure %v, %v, %v", d.CPUPressure, d.MemoryPressure, d.IOPressure)
	}
}

// With few controllers and an old kernel little is known, and nothing is made up.
func TestDetailV2Poor(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "c"), map[string]string{
		"cpu.stat": "usage_usec 1\n", "cpu.max": "max 100000\n", "memory.stat": "kernel_stack 1\nslab 2\n", "cgroup.procs": "",
	})
	d, err := r.Detail(t.Context(), "/c")
	if err != nil {
		t.Fatal(err)
	}
	expectNumbers(t, numbers(d), map[string]uint64{"total": 1000, "kernel": 3, "period": 100000, "quota": 0})
}

var detailFilesV1 = map[string]map[string]string{
	"cpuacct": {"cpuacct.usage": "2000000000\n", "cpuacct.usage_user": "1500000000\n", "cpuacct.usage_sys": "500000000\n"},
	"cpu": {
		"cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 3000000000\n", "cpu.cfs_period_us": "100000\n",
		"cpu.cfs_quota_us": "20000\n", "cpu.shares": "1024\n",
	},
	"memory": {
		"memory.usage_in_bytes": "10000\n", "memory.max_usage_in_bytes": "12000\n", "memory.limit_in_bytes": "16384\n",
		"memory.soft_limit_in_bytes": "9223372036854771712\n", "memory.memsw.limit_in_bytes": "20480\n",
		"memory.kmem.usage_in_bytes": "700\n", "memory.failcnt": "5\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory.stat":        "cache 1\ntotal_cache 6000\ntotal_rss 3000\ntotal_mapped_file 50\ntotal_swap 100\ntotal_active_file 60\ntotal_inactive_file 4000\ntotal_pgfault 77\ntotal_pgmajfault 7\n",
		"cgroup.procs":       "11\n",
	},
	"blkio": {
		"blkio.throttle.io_service_bytes_recursive": "8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n8:0 Total 3\nTotal 3\n",
		"blkio.throttle.io_serviced_recursive":      "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
	},
	"hugetlb": {"hugetlb.2MB.usage_in_bytes": "0\n", "hugetlb.2MB.max_usage_in_bytes": "2097152\n"},
	"pids":    {"pids.current": "9\n", "pids.max": "100\n"},
}

func hostV1(t *testing.T, controllers ...string) (cgroups.Host, string) {
	t.Helper()
	root := t.TempDir()
	h := cgroups.Host{Mounts: map[string]string{}}
	for _, c := range controllers {
		h.Mounts[c] = filepath.Join(root, c)
	}
	return h, root
}

func TestDetailV1(t *testing.T) {
	h, root := hostV1(t, slices.Collect(maps.Keys(detailFilesV1))...)
	for controller, files := range detailFilesV1 {
		lay(t, filepath.Join(root, controller, "p/c"), files)
	}
	h.Root = filepath.Join(root, "unified") // hybrid
	lay(t, filepath.Join(h.Root, "p/c"), map[string]string{"io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"})
	d, err := New(Options{Host: &h}).Detail(t.Context(), "/p/c")
	if err != nil {
		t.Fatal(err)
	}
	expectNumbers(t, numbers(d), map[string]uint64{
		"total": 2e9, "user": 15e8, "system": 5e8, "periods": 10, "throttled": 4, "throttled total": 3e9,
		"usage": 10000, "max": 12000, "working set": 6000, "rss": 3000, "cache": 6000, "mapped": 50, "kernel": 700, "swap": 100,
		"active": 60, "inactive": 4000, "hits": 5, "faults": 77, "major": 7, "oom": 1,
		"period": 100000, "quota": 20000, "shares": 1024, "limit": 16384, "reservation": 0, "swap limit": 20480,
		"tasks": 9, "max tasks": 100,
	})
	if want := []DeviceIO{{8, 0, 1, 2, 3, 4}}; !slices.Equal(d.Devices, want) {
		t.Errorf("devices %v", d.Devices)
	}
	if len(d.HugePages) != 1 || *d.HugePages[0].Max != 2097152 {
		t.Errorf("huge pages %v", d.HugePages)
	}
	if d.IOPressure.GetSome().GetTotal() != 9000 || d.CPUPressure != nil || !slices.Equal(d.PIDs, []int{11}) {
		t.Errorf("%v, %v, %v", d.IOPressure, d.CPUPressure, d.PIDs)
	}
}

func TestDetailV1Old(t *testing.T) {
	h, root := hostV1(t, "cpuacct", "cpu", "blkio")
	lay(t, filepath.Join(root, "cpuacct/c"), map[string]string{"cpuacct.usage": "5\n", "cpuacct.stat": "user 150\nsystem 50\n"})
	lay(t, filepath.Join(root, "cpu/c"), map[string]string{"cpu.cfs_quota_us": "-1\n"})
	lay(t, filepath.Join(root, "blkio/c"), map[string]string{"blkio.throttle.io_service_bytes": "8:0 Read 1\n"})
	r := New(Options{Host: &h})
	d, err := r.Detail(t.Context(), "/c")
	if err != nil {
		t.Fatal(err)
	}
	expectNumbers(t, numbers(d), map[string]uint64{"total": 5, "user": 15e8, "system": 5e8, "quota": 0})
	if len(d.Devices) != 1 || d.Devices[0].ReadBytes != 1 {
		t.Errorf("devices %v", d.Devices)
	}
	lay(t, filepath.Join(root, "cpuacct/c"), map[string]string{"cpuacct.usage": "many\n"})
	if _, err := r.Detail(t.Context(), "/c"); err == nil {
		t.Error("nonsense is read as a number")
	}
}

func TestDetailOfNothing(t *testing.T) {
	v2, _, _ := fixture(t)
	h, _ := hostV1(t, "cpuacct", "memory")
	for name, r := range map[string]*Reader{"v1": New(Options{Host: &h}), "v2": v2} {
		if _, err := r.Detail(t.Context(), "/none"); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v2.Detail(gone, "/none"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The files of this node's own root cgroups are of the form that is expected.
func TestDetailOfThisNode(t *testing.T) {
	d, err := New(Options{}).DetailOf(t.Context(), "/")
	if err != nil {
		t.Skipf("no cgroups here: %v", err)
	}
	if d.CPU.Total == nil || *d.CPU.Total == 0 || d.CPU.User == nil || d.CPU.System == nil {
		t.Errorf("cpu %s %s %s", show(d.CPU.Total), show(d.CPU.User), show(d.CPU.System))
	}
}

func TestDescriptors(t *testing.T) {
	self := []int{os.Getpid()}
	files, sockets := Descriptors(append(self, 1<<30))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	if f, s := Descriptors(self); f <= files || s <= sockets {
		t.Errorf("before a socket %d and %d, after %d and %d", files, sockets, f, s)
	}
	if n, ok := OpenFilesLimit(os.Getpid()); !ok || n == 0 {
		t.Errorf("limit %d, %v", n, ok)
	}
	if _, ok := OpenFilesLimit(1 << 30); ok {
		t.Error("a process that is not there has a limit")
	}
	for text, want := range map[string]uint64{"": 0, "Max open files            1024                 524288               files\n": 1024, "Max open files unlimited unlimited files": 0} {
		if n, ok := parseLimits(text); n != want || ok != (want > 0) {
			t.Errorf("%q: %d, %v", text, n, ok)
		}
	}
}

func TestFileSystemOf(t *testing.T) {
	fs, err := FileSystemOf("/")
	if err != nil || fs.Size == 0 || fs.Device == "" {
		t.Errorf("%+v, %v", fs, err)
	}
	if _, err := FileSystemOf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a path that is not there has a file system")
	}
	if got := DeviceName(4095, 77); got != "4095:77" {
		t.Error(got)
	}
}

func TestInterfaces(t *testing.T) {
	all, err := New(Options{}).Interfaces(namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, i := range all {
		names[i.Name] = true
	}
	if !names["eth0"] || !names["first"] || names["lo"] {
		t.Errorf("%v", names)
	}
	if all, err := New(Options{}).Interfaces(""); all != nil || err != nil {
		t.Errorf("the node's: %v, %v", all, err)
	}
}
