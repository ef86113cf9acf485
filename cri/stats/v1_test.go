// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

func TestV1Fixture(t *testing.T) {
	root := t.TempDir()
	h := cgroups.Host{Mounts: map[string]string{"cpuacct": filepath.Join(root, "cpuacct"), "memory": filepath.Join(root, "memory")}}
	lay(t, filepath.Join(root, "cpuacct/p/c"), map[string]string{"cpuacct.usage": "12345\n"})
	lay(t, filepath.Join(root, "memory/p/c"), map[string]string{
		"memory.usage_in_bytes": "10000\n", "memory.limit_in_bytes": "16384\n", "memory.memsw.limit_in_bytes": "20480\n", "cgroup.procs": "1\n",
		"memory.stat": "rss 1\ntotal_rss 3000\ntotal_inactive_file 4000\ntotal_pgfault 77\ntotal_pgmajfault 7\ntotal_swap 96\n",
	})
	u, err := New(Options{Host: &h}).Container(t.Context(), "c", "/p/c")
	if err != nil {
		t.Fatal(err)
	}
	got := []uint64{
		u.CPU.GetUsageCoreNanoSeconds().GetValue(), u.Memory.GetWorkingSetBytes().GetValue(), u.Memory.GetAvailableBytes().GetValue(),
		u.Memory.GetRssBytes().GetValue(), u.Swap.GetSwapUsageBytes().GetValue(), u.Swap.GetSwapAvailableBytes().GetValue(), count(t, u),
	}
	for i, want := range []uint64{12345, 6000, 10384, 3000, 96, 4000, 1} {
		if got[i] != want {
			t.Errorf("value %d: got %d, want %d", i, got[i], want)
		}
	}
	lay(t, filepath.Join(root, "memory/p/c"), map[string]string{"memory.limit_in_bytes": "9223372036854771712\n"})
	if u, err = New(Options{Host: &h}).Container(t.Context(), "c", "/p/c"); err != nil || u.Memory.GetAvailableBytes() != nil || u.Swap.GetSwapAvailableBytes() != nil {
		t.Errorf("without a limit: %+v, %v", u, err)
	}
}

// The real controllers, with a process that burns CPU in a cgroup of ours.
func TestV1Real(t *testing.T) {
	h := cgroups.Detect()
	if h.Unified || !h.Has("cpuacct") || !h.Has("memory") || os.Geteuid() != 0 {
		t.Skip("needs root and the cgroup v1 controllers cpuacct and memory")
	}
	dir := fmt.Sprintf("/sandflow-stats-%d", os.Getpid())
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpuacct", "memory"} {
		full := filepath.Join(h.Mounts[c], dir)
		if err := os.Mkdir(full, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeCgroup(t, full) })
		if err := os.WriteFile(filepath.Join(full, "cgroup.procs"), []byte(fmt.Sprint(busy.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	r := New(Options{Host: &h})
	first, err := r.Container(t.Context(), "c", dir)
	if err != nil {
		t.Fatal(err)
	}
	if first.CPU.GetUsageNanoCores() != nil || count(t, first) != 1 || first.Memory.GetUsageBytes() == nil {
		t.Errorf("first: %+v", first)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		u, err := r.Container(t.Context(), "c", dir)
		if err != nil {
			t.Fatal(err)
		}
		if u.CPU.GetUsageCoreNanoSeconds().GetValue() < first.CPU.GetUsageCoreNanoSeconds().GetValue() {
			t.Fatal("the CPU time has fallen")
		}
		if u.CPU.GetUsageNanoCores().GetValue() > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no rate of a busy process: %v", u.CPU)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func removeCgroup(t *testing.T, dir string) {
	t.Helper()
	var err error
	for range 100 {
		if err = os.Remove(dir); err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("remove cgroup: %v", err)
}
