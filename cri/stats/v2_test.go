// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

func lay(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fixture is a cgroup v2 hierarchy in plain files.
func fixture(t *testing.T) (*Reader, string, *time.Time) {
	t.Helper()
	root := t.TempDir()
	lay(t, root, map[string]string{"cgroup.controllers": "cpu io memory pids\n"})
	h := cgroups.Unified(root)
	now := time.Unix(1000, 0)
	return New(Options{Host: &h, Now: func() time.Time { return now }}), root, &now
}

var v2Files = map[string]string{
	"cpu.stat":            "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\n",
	"cpu.pressure":        "some avg10=1.50 avg60=0.50 avg300=0.10 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n",
	"memory.current":      "10000\n",
	"memory.max":          "16384\n",
	"memory.stat":         "anon 3000\nfile 6000\ninactive_file 4000\nswapcached 10\npgfault 77\npgmajfault 7\n",
	"memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
	"memory.swap.current": "100\n",
	"memory.swap.max":     "300\n",
	"io.pressure":         "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
	"cgroup.procs":        "1\n2\n",
}

func TestV2(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "pods/c"), v2Files)
	lay(t, filepath.Join(root, "pods/c/inner"), map[string]string{"cgroup.procs": "3\n"})
	u, err := r.Container(t.Context(), "c", "/pods/c")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]uint64{
		"cpu":            {u.CPU.GetUsageCoreNanoSeconds().GetValue(), 2e9},
		"cpu psi some":   {u.CPU.GetPsi().GetSome().GetTotal(), 123000},
		"cpu psi full":   {u.CPU.GetPsi().GetFull().GetTotal(), 45000},
		"usage":          {u.Memory.GetUsageBytes().GetValue(), 10000},
		"working set":    {u.Memory.GetWorkingSetBytes().GetValue(), 6000},
		"available":      {u.Memory.GetAvailableBytes().GetValue(), 10384},
		"rss":            {u.Memory.GetRssBytes().GetValue(), 3010},
		"faults":         {u.Memory.GetPageFaults().GetValue(), 77},
		"major faults":   {u.Memory.GetMajorPageFaults().GetValue(), 7},
		"memory psi":     {u.Memory.GetPsi().GetSome().GetTotal(), 5000},
		"swap":           {u.Swap.GetSwapUsageBytes().GetValue(), 100},
		"swap available": {u.Swap.GetSwapAvailableBytes().GetValue(), 200},
		"io psi":         {u.IO.GetPsi().GetSome().GetTotal(), 9000},
		"processes":      {count(t, u), 3},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: got %d, want %d", name, c[0], c[1])
		}
	}
	if u.CPU.GetUsageNanoCores() != nil || u.CPU.GetPsi().GetSome().GetAvg10() != 1.5 || u.CPU.GetTimestamp() != time.Unix(1000, 0).UnixNano() {
		t.Errorf("cpu: %v", u.CPU)
	}
}

func TestV2WithoutLimitsSwapAndPressure(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "sandflow.slice/sandflow-c.scope"), map[string]string{
		"cpu.stat": "usage_usec 1\n", "memory.current": "10\n", "memory.max": "max\n", "memory.stat": "inactive_file 20\n", "cgroup.procs": "",
	})
	u, err := r.Container(t.Context(), "c", "sandflow.slice:sandflow:c")
	if err != nil {
		t.Fatal(err)
	}
	if u.Memory.GetAvailableBytes() != nil || u.Swap != nil || u.IO != nil || u.CPU.GetPsi() != nil || u.Memory.GetWorkingSetBytes().GetValue() != 0 {
		t.Errorf("%+v", u)
	}
}

func TestNoCgroup(t *testing.T) {
	r, _, _ := fixture(t)
	if _, err := r.Container(t.Context(), "c", "/none"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Error(err)
	}
	if u, err := r.Pod(t.Context(), "p", "/none", nil); err != nil || u.CPU.GetUsageCoreNanoSeconds().GetValue() != 0 {
		t.Errorf("a pod before its first container: %v, %v", u, err)
	}
}

// The files of a real cgroup v2 mount, whose controllers may be few.
func TestRealV2Mount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := t.TempDir()
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		t.Skipf("no cgroup2 mount here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	h := cgroups.Unified(root)
	dir := filepath.Join("/", "sandflow-stats-test")
	if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(filepath.Join(root, dir)); err != nil {
			t.Error(err)
		}
	})
	if n, err := processes(filepath.Join(root, dir)); err != nil || n != 0 {
		t.Errorf("processes: %d, %v", n, err)
	}
	if cpu, err := readPairs(filepath.Join(root, dir), "cpu.stat"); err != nil || len(cpu) == 0 {
		t.Errorf("cpu.stat: %v, %v", cpu, err)
	}
	if !h.Has("memory") {
		t.Skip("the mount has no memory controller")
	}
	if _, err := New(Options{Host: &h}).Container(t.Context(), "c", dir); err != nil {
		t.Error(err)
	}
}
