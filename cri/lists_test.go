// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

const many = 5000

// busyRig has many pods with a running container each, and files where their cgroup
// would be.
func busyRig(t *testing.T, n int) *rig {
	t.Helper()
	r, root := newRig(t), t.TempDir()
	host := cgroups.Unified(root)
	r.stats = stats.New(stats.Options{Host: &host})
	r.fill(n)
	writeCgroup(t, filepath.Join(root, oneCgroup))
	return r
}

func writeCgroup(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"cpu.stat": "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\n", "cgroup.procs": "",
		"memory.current": "10000\n", "memory.max": "max\n", "memory.stat": "inactive_file 4000\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// drainAll reads a stream to its end and gives the ids in their order and how many
// messages they came in. between is called after the first message.
func drainAll[M proto.Message](t *testing.T, stream interface{ Recv() (M, error) }, ids func(M) []string, between func()) (all []string, messages int) {
	t.Helper()
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, messages
		}
		if err != nil {
			t.Fatal(err)
		}
		if messages++; messages == 1 && between != nil {
			between()
		}
		if n := len(ids(m)); n == 0 || (n > 1 && proto.Size(m) > 1<<20) {
			t.Errorf("a message of %d items and %d bytes", n, proto.Size(m))
		}
		all = append(all, ids(m)...)
	}
}

func idsOf[T any](items []T, id func(T) string) []string {
	var all []string
	for _, i := range items {
		all = append(all, id(i))
	}
	return all
}

// ids are the IDs of total items of the store.
func ids(prefix string, total int) []string {
	all := make([]string, total)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}

// odds are the IDs with an odd number.
func odds(all []string) []string {
	var half []string
	for i := 1; i < len(all); i += 2 {
		half = append(half, all[i])
	}
	return half
}

// expectEach wants each of the IDs once, in any order, and no other.
func expectEach(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %d items, want each of %d once; the first are %v", what, len(got), len(want), got[:min(len(got), 5)])
	}
}

// Case 82: five thousand pods and containers, each in exactly one message of a stream,
// as the filter says; and the same as the list.
func TestCase82StreamsOfMany(t *testing.T) {
	r := busyRig(t, many)
	odd := map[string]string{"parity": "1"}
	containersOf := func(m *criapi.StreamContainersResponse) []string {
		return idsOf(m.GetContainers(), (*criapi.Container).GetId)
	}
	containers, err := r.client.StreamContainers(t.Context(), &criapi.StreamContainersRequest{})
	r.must(err)
	got, messages := drainAll(t, containers, containersOf, nil)
	expectEach(t, "containers", got, ids("ctr", many))
	if messages < 10 {
		t.Errorf("all came in %d messages", messages)
	}
	list, err := r.client.ListContainers(t.Context(), &criapi.ListContainersRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	r.must(err)
	expectEach(t, "listed", idsOf(list.GetContainers(), (*criapi.Container).GetId), ids("ctr", many))
	containers, err = r.client.StreamContainers(t.Context(), &criapi.StreamContainersRequest{Filter: &criapi.ContainerFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, containers, containersOf, nil)
	expectEach(t, "odd containers", got, odds(ids("ctr", many)))

	pods, err := r.client.StreamPodSandboxes(t.Context(), &criapi.StreamPodSandboxesRequest{Filter: &criapi.PodSandboxFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, pods, func(m *criapi.StreamPodSandboxesResponse) []string {
		return idsOf(m.GetPodSandboxes(), (*criapi.PodSandbox).GetId)
	}, nil)
	expectEach(t, "odd pods", got, odds(ids("pod", many)))

	usage, err := r.client.StreamContainerStats(t.Context(), &criapi.StreamContainerStatsRequest{Filter: &criapi.ContainerStatsFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, usage, func(m *criapi.StreamContainerStatsResponse) []string {
		return idsOf(m.GetContainerStats(), func(c *criapi.ContainerStats) string { return c.GetAttributes().GetId() })
	}, nil)
	expectEach(t, "odd container stats", got, odds(ids("ctr", many)))

	podUsage, err := r.client.StreamPodSandboxStats(t.Context(), &criapi.StreamPodSandboxStatsRequest{})
	r.must(err)
	got, _ = drainAll(t, podUsage, func(m *criapi.StreamPodSandboxStatsResponse) []string {
		return idsOf(m.GetPodSandboxStats(), func(p *criapi.PodSandboxStats) string { return p.GetAttributes().GetId() })
	}, nil)
	expectEach(t, "pod stats", got, ids("pod", many))

	gauges, err := r.client.StreamPodSandboxMetrics(t.Context(), &criapi.StreamPodSandboxMetricsRequest{})
	r.must(err)
	got, _ = drainAll(t, gauges, func(m *criapi.StreamPodSandboxMetricsResponse) []string {
		return idsOf(m.GetPodSandboxMetrics(), (*criapi.PodSandboxMetrics).GetPodSandboxId)
	}, nil)
	expectEach(t, "pod metrics", got, ids("pod", many))
}

// A reader that stops in the middle holds up nobody, and gets the picture of the
// beginning: neither what is gone nor what is new spoils it.
func TestSlowReaderOfAStream(t *testing.T) {
	r := newRig(t)
	const some = 1000
	r.fill(some)
	stream, err := r.dial().StreamContainers(t.Context(), &criapi.StreamContainersRequest{})
	r.must(err)
	got, _ := drainAll(t, stream, func(m *criapi.StreamContainersResponse) []string {
		return idsOf(m.GetContainers(), (*criapi.Container).GetId)
	}, func() {
		// The daemon serves others meanwhile.
		r.must(r.down("container", "remove", "ctr-0999"), r.container("pod-0000", "new", nil))
		s, err := r.client.ContainerStatus(t.Context(), &criapi.ContainerStatusRequest{ContainerId: "new"})
		if err != nil || s.GetStatus().GetId() != "new" {
			t.Errorf("%v, %v", s, err)
		}
	})
	expectEach(t, "containers", got, ids("ctr", some))
}

// When the reader goes the RPC ends.
func TestReaderOfAStreamGone(t *testing.T) {
	r := busyRig(t, 1000)
	gone, cancel := context.WithCancel(t.Context())
	stream, err := r.dial().StreamPodSandboxStats(gone, &criapi.StreamPodSandboxStatsRequest{})
	r.must(err)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if method := <-r.ended; method != "StreamPodSandboxStats" {
		t.Errorf("%s has ended", method)
	}
}

func TestSideBySide(t *testing.T) {
	var views []*engine.View
	for i := range 3*piece + 7 {
		views = append(views, &engine.View{ID: strconv.Itoa(i)})
	}
	odd := func(v *engine.View) (int, bool) {
		n, _ := strconv.Atoi(v.ID)
		return n, n%2 == 1
	}
	next := 1
	for n := range sideBySide(views, odd) {
		if n != next {
			t.Fatalf("%d comes where %d should", n, next)
		}
		if next += 2; next > 2*piece {
			break // the rest is not asked for
		}
	}
	defer func() {
		if p := recover(); p != "broken" {
			t.Errorf("the panic of one is %v", p)
		}
	}()
	for range sideBySide(views, func(*engine.View) (int, bool) { panic("broken") }) {
		t.Error("something is read")
	}
}
