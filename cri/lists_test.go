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
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
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

// expectEach wants all of total items, or those with an odd number if half are wanted.
func expectEach(t *testing.T, what, prefix string, got []string, total, want int) {
	t.Helper()
	seen := map[string]bool{}
	for _, id := range got {
		if seen[id] {
			t.Errorf("%s: %s comes twice", what, id)
		}
		seen[id] = true
	}
	for i := range total {
		if id := fmt.Sprintf("%s-%04d", prefix, i); seen[id] != (want == total || i%2 == 1) {
			t.Fatalf("%s: %s is there: %v", what, id, seen[id])
		}
	}
	if len(got) != want {
		t.Errorf("%s: %d items, want %d", what, len(got), want)
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
	expectEach(t, "containers", "ctr", got, many, many)
	if messages < 10 {
		t.Errorf("all came in %d messages", messages)
	}
	list, err := r.client.ListContainers(t.Context(), &criapi.ListContainersRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
	r.must(err)
	expectEach(t, "listed", "ctr", idsOf(list.GetContainers(), (*criapi.Container).GetId), many, many)
	containers, err = r.client.StreamContainers(t.Context(), &criapi.StreamContainersRequest{Filter: &criapi.ContainerFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, containers, containersOf, nil)
	expectEach(t, "odd containers", "ctr", got, many, many/2)

	pods, err := r.client.StreamPodSandboxes(t.Context(), &criapi.StreamPodSandboxesRequest{Filter: &criapi.PodSandboxFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, pods, func(m *criapi.StreamPodSandboxesResponse) []string {
		return idsOf(m.GetPodSandboxes(), (*criapi.PodSandbox).GetId)
	}, nil)
	expectEach(t, "odd pods", "pod", got, many, many/2)

	usage, err := r.client.StreamContainerStats(t.Context(), &criapi.StreamContainerStatsRequest{Filter: &criapi.ContainerStatsFilter{LabelSelector: odd}})
	r.must(err)
	got, _ = drainAll(t, usage, func(m *criapi.StreamContainerStatsResponse) []string {
		return idsOf(m.GetContainerStats(), func(c *criapi.ContainerStats) string { return c.GetAttributes().GetId() })
	}, nil)
	expectEach(t, "odd container stats", "ctr", got, many, many/2)

	podUsage, err := r.client.StreamPodSandboxStats(t.Context(), &criapi.StreamPodSandboxStatsRequest{})
	r.must(err)
	got, _ = drainAll(t, podUsage, func(m *criapi.StreamPodSandboxStatsResponse) []string {
		return idsOf(m.GetPodSandboxStats(), func(p *criapi.PodSandboxStats) string { return p.GetAttributes().GetId() })
	}, nil)
	expectEach(t, "pod stats", "pod", got, many, many)

	gauges, err := r.client.StreamPodSandboxMetrics(t.Context(), &criapi.StreamPodSandboxMetricsRequest{})
	r.must(err)
	got, _ = drainAll(t, gauges, func(m *criapi.StreamPodSandboxMetricsResponse) []string {
		return idsOf(m.GetPodSandboxMetrics(), (*criapi.PodSandboxMetrics).GetPodSandboxId)
	}, nil)
	expectEach(t, "pod metrics", "pod", got, many, many)
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
	expectEach(t, "containers", "ctr", got, some, some)
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
