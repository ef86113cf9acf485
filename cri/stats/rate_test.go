// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Case 74: unset at first, then right for two clients in quick turn, never a false zero.
func TestRateIsSharedByClients(t *testing.T) {
	r, root, now := fixture(t)
	dir := filepath.Join(root, "c")
	lay(t, dir, v2Files)
	used := int64(0)
	ask := func() (rate uint64, known bool) {
		t.Helper()
		lay(t, dir, map[string]string{"cpu.stat": fmt.Sprintf("usage_usec %d\n", used)})
		u, err := r.Container(t.Context(), "c", "/c")
		if err != nil {
			t.Fatal(err)
		}
		v := u.CPU.GetUsageNanoCores()
		return v.GetValue(), v != nil
	}
	pass := func(d time.Duration) { *now = now.Add(d); used += d.Microseconds() } // one core, busy
	if rate, known := ask(); known {
		t.Errorf("the first call knows a rate: %d", rate)
	}
	for i := range 200 {
		pass(150 * time.Millisecond)
		if rate, known := ask(); !known || rate < 9e8 || rate > 11e8 {
			t.Fatalf("call %d: %d, known %v", i, rate, known)
		}
		pass(time.Millisecond)
		if rate, known := ask(); !known || rate < 9e8 || rate > 11e8 {
			t.Fatalf("call %d of the second client: %d, known %v", i, rate, known)
		}
	}
	*now = now.Add(10 * time.Second) // idle
	if rate, _ := ask(); rate > 2e8 {
		t.Errorf("after 10 s of idling: %d", rate)
	}
	if n := len(r.rates.history["c"]); n > maxSamples+1 {
		t.Errorf("%d samples are kept", n)
	}
	r.Forget("c")
	if _, known := ask(); known {
		t.Error("a rate was made from forgotten samples")
	}
}

func TestRateOfIdleIsZeroNotUnset(t *testing.T) {
	r, root, now := fixture(t)
	lay(t, filepath.Join(root, "c"), v2Files)
	for i := range 3 {
		u, err := r.Container(t.Context(), "c", "/c")
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && (u.CPU.GetUsageNanoCores() == nil || u.CPU.GetUsageNanoCores().GetValue() != 0) {
			t.Errorf("got %v", u.CPU)
		}
		*now = now.Add(time.Second)
	}
}

func TestReaderIsSafeForManyGoroutines(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "c"), v2Files)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				u, err := r.Container(t.Context(), "c", "/c")
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := r.Pod(t.Context(), "p", "", []Member{{"c", u}}); err != nil {
					t.Error(err)
				}
				r.Forget("c")
			}
		})
	}
	wg.Wait()
}

// A pod without a cgroup of its own is the sum; its CPU time never falls.
func TestPodIsTheSum(t *testing.T) {
	r, root, now := fixture(t)
	lay(t, filepath.Join(root, "a"), v2Files)
	lay(t, filepath.Join(root, "b"), v2Files)
	pod := func(ids ...string) *Usage {
		t.Helper()
		var members []Member
		for _, id := range ids {
			u, err := r.Container(t.Context(), id, "/"+id)
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, Member{id, u})
		}
		u, err := r.Pod(t.Context(), "pod", "", members)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	u := pod("a", "b")
	if u.CPU.GetUsageCoreNanoSeconds().GetValue() != 4e9 || u.Memory.GetWorkingSetBytes().GetValue() != 12000 || count(t, u) != 4 ||
		u.Memory.GetAvailableBytes().GetValue() != 2*10384 || u.Swap.GetSwapUsageBytes().GetValue() != 200 {
		t.Errorf("%+v", u)
	}
	*now = now.Add(time.Second)
	if u := pod("b"); u.CPU.GetUsageCoreNanoSeconds().GetValue() != 4e9 || u.CPU.GetUsageNanoCores() == nil {
		t.Errorf("after a is gone: %v", u.CPU)
	}
	if u := pod("a", "b"); u.CPU.GetUsageCoreNanoSeconds().GetValue() != 4e9 {
		t.Errorf("after a is back: %v", u.CPU)
	}
	many := map[string]uint64{}
	for i := range maxLast + 5 {
		many[fmt.Sprint(i)] = 1
	}
	all := r.pods.add("pod", many)
	if got := r.pods.add("pod", map[string]uint64{"0": 1}); got != all {
		t.Errorf("folding changed the sum from %d to %d", all, got)
	}
	if got := r.pods.add("pod", map[string]uint64{"0": 1}); got != all || len(r.pods.pods["pod"].last) > maxLast+5 {
		t.Errorf("got %d for %d, and %d containers are remembered", got, all, len(r.pods.pods["pod"].last))
	}
	r.Forget("pod")
	if u := pod(); u.CPU.GetUsageCoreNanoSeconds().GetValue() != 0 || u.Memory.GetAvailableBytes() != nil {
		t.Errorf("forgotten and empty: %v", u)
	}
}

func TestPodHasItsOwnCgroup(t *testing.T) {
	r, root, _ := fixture(t)
	lay(t, filepath.Join(root, "kubepods/podx"), v2Files)
	u, err := r.Pod(t.Context(), "pod", "/kubepods/podx", nil)
	if err != nil || u.CPU.GetUsageCoreNanoSeconds().GetValue() != 2e9 {
		t.Errorf("%+v, %v", u, err)
	}
}

func count(t *testing.T, u *Usage) uint64 {
	t.Helper()
	n, err := u.Processes()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
