// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const doc = "../../docs/metrics.md"

// full has a value for everything.
func full() Sample {
	n := func(v uint64) *uint64 { return &v }
	psi := func(some, all uint64) *runtime.PsiStats {
		return &runtime.PsiStats{Some: &runtime.PsiData{Total: some * 1e9}, Full: &runtime.PsiData{Total: all * 1e9}}
	}
	return Sample{
		Detail: &stats.Detail{
			CPU: stats.CPUDetail{Total: n(7e9), User: n(4e9), System: n(3e9), Periods: n(10), Throttled: n(4), ThrottledTotal: n(1999999999)},
			Memory: stats.MemoryDetail{
				Usage: n(1), Max: n(2), WorkingSet: n(3), RSS: n(4), Cache: n(5), Mapped: n(6), Kernel: n(7), Swap: n(8),
				ActiveFile: n(9), InactiveFile: n(10), LimitHits: n(11), PageFaults: n(12), MajorFaults: n(13), OOMKills: n(14),
			},
			Limits:    stats.Limits{CPUPeriod: n(100000), CPUQuota: n(20000), CPUShares: n(2), Memory: n(0), MemoryReservation: n(0)},
			Devices:   []stats.DeviceIO{{Major: 8, Minor: 1, ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4}},
			HugePages: []stats.HugePage{{Size: "2MB", Usage: 1, Max: n(2)}},
			Tasks:     n(5), MaxTasks: n(0),
			CPUPressure: psi(1, 2), MemoryPressure: psi(3, 4), IOPressure: psi(5, 6),
		},
		Processes:  &Processes{Count: 1, Files: 2, Sockets: 3, OpenFiles: n(1024)},
		Disk:       &Disk{FileSystem: stats.FileSystem{Device: "/dev/vda", Size: 1, Inodes: 2, InodesFree: 3}, Used: 4},
		Interfaces: []stats.Interface{{Name: "eth0", Received: stats.Traffic{Bytes: 1, Packets: 2, Dropped: 3, Errors: 4}}},
		Seen:       time.Unix(2000, 0), Started: time.Unix(1000, 0),
		DeviceName: func(major, minor uint64) string { return fmt.Sprintf("/dev/%d-%d", major, minor) },
	}
}

// Every metric that is described has a value, with as many labels as described; and
// none has that is not.
func TestDescriptorsAndMetricsAgree(t *testing.T) {
	keys := map[string]int{}
	for _, d := range Descriptors() {
		if keys[d.GetName()] != 0 || d.GetHelp() == "" {
			t.Errorf("%s is described twice or without help", d.GetName())
		}
		keys[d.GetName()] = len(d.GetLabelKeys())
	}
	seen := map[string]bool{}
	unique := map[string]bool{}
	for _, m := range Collect(Labels{Container: "c"}, full()) {
		seen[m.GetName()] = true
		if keys[m.GetName()] != len(m.GetLabelValues()) {
			t.Errorf("%s has %d labels, not %d", m.GetName(), len(m.GetLabelValues()), keys[m.GetName()])
		}
		if id := m.GetName() + strings.Join(m.GetLabelValues(), "|"); unique[id] {
			t.Errorf("%s comes twice", id)
		} else {
			unique[id] = true
		}
		if counts := strings.HasSuffix(m.GetName(), "_total") && m.GetName() != "container_fs_inodes_total" || m.GetName() == "container_memory_failcnt"; counts != (m.GetMetricType() == counter) {
			t.Errorf("%s is a %v", m.GetName(), m.GetMetricType())
		}
		if m.GetTimestamp() != 0 {
			t.Errorf("%s is read live, and has a time", m.GetName())
		}
	}
	for name := range keys {
		if !seen[name] {
			t.Errorf("%s has no value", name)
		}
	}
}

func TestValues(t *testing.T) {
	l := Labels{Container: "app", ID: "/kubepods/c", Image: "img", Name: "c", Namespace: "ns", Pod: "p"}
	got := map[string]uint64{}
	for _, m := range Collect(l, full()) {
		if base := m.GetLabelValues()[:6]; !slices.Equal(base, []string{"app", "/kubepods/c", "img", "c", "ns", "p"}) {
			t.Fatalf("labels %v", base)
		}
		got[strings.Join(append([]string{m.GetName()}, m.GetLabelValues()[6:]...), " ")] = m.GetValue().GetValue()
	}
	for name, want := range map[string]uint64{
		"container_cpu_usage_seconds_total total":               7,
		"container_cpu_cfs_throttled_seconds_total":             1, // whole seconds
		"container_memory_failures_total pgmajfault container":  13,
		"container_blkio_device_usage_total /dev/8-1 8 1 Write": 2,
		"container_fs_reads_total /dev/8-1":                     3,
		"container_fs_usage_bytes /dev/vda":                     4,
		"container_hugetlb_max_usage_bytes 2MB":                 2,
		"container_network_receive_packets_dropped_total eth0":  3,
		"container_pressure_memory_stalled_seconds_total":       4,
		"container_ulimits_soft max_open_files":                 1024,
		"container_spec_memory_swap_limit_bytes":                0, // no swap accounting
		"container_start_time_seconds":                          1000,
	} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("%s: got %d (%v), want %d", name, n, ok, want)
		}
	}
}

// What is not known is not told.
func TestNothingIsMadeUp(t *testing.T) {
	for _, m := range Collect(Labels{}, Sample{Seen: time.Now()}) {
		if m.GetName() != "container_last_seen" {
			t.Errorf("%s", m.GetName())
		}
	}
	quiet := full()
	quiet.Detail.Limits.CPUQuota = new(uint64(0))
	for _, m := range Collect(Labels{}, quiet) {
		if strings.Contains(m.GetName(), "_cfs_") || strings.Contains(m.GetName(), "quota") {
			t.Errorf("%s without a quota", m.GetName())
		}
	}
	quiet.Detail = &stats.Detail{}
	if n := len(Collect(Labels{}, quiet)); n == 0 {
		t.Error("no metrics without cgroup files")
	}
}

// The documentation is made from the table: go test ./cri/metrics -update.
func TestDocumentation(t *testing.T) {
	var b strings.Builder
	b.WriteString(docHead)
	kinds := map[string]string{}
	for _, m := range table {
		kinds[m.name] = strings.ToLower(m.kind.String())
	}
	for _, d := range Descriptors() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.GetName(), kinds[d.GetName()], strings.Join(d.GetLabelKeys()[len(baseKeys):], ", "), d.GetHelp())
	}
	if *update {
		if err := os.WriteFile(doc, []byte(b.String()), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(doc)
	if err != nil || string(have) != b.String() {
		t.Errorf("%s is not as the table says: run go test ./cri/metrics -update (%v)", doc, err)
	}
}

const docHead = "# Metrics of pods and containers\n\n" +
	"ListMetricDescriptors, ListPodSandboxMetrics and StreamPodSandboxMetrics give kubelet what cAdvisor gives it elsewhere\n" +
	"(feature gate PodAndContainerStatsFromCRI), under the same names and labels. They are read when they are asked for, from\n" +
	"cgroup v1 or v2, `/proc` and the pod's network namespace; no shim is asked, so one that hangs delays nothing.\n\n" +
	"Every metric has the labels `container` (its name), `id` (its cgroup), `image`, `name` (its ID), `namespace` and `pod`.\n" +
	"A pod as a whole has the network metrics, and, if its cgroup is its own, those that a cgroup tells; then `container` and\n" +
	"`image` are empty and `name` is the ID of the sandbox. What a node does not know is left out: no value is made up.\n" +
	"Seconds are whole ones, since the CRI carries integers.\n\n" +
	"| metric | type | more labels | meaning |\n|---|---|---|---|\n"
