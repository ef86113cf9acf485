// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// A pod with a cgroup of its own and two containers, of which one is gone already.
func TestPodMetrics(t *testing.T) {
	r, root := newRig(t), t.TempDir()
	host := cgroups.Unified(root)
	r.stats = stats.New(stats.Options{Host: &host})
	writeCgroup(t, filepath.Join(root, "kubepods/p"))
	writeCgroup(t, filepath.Join(root, oneCgroup))
	r.must(r.pod("p", &criapi.PodSandboxConfig{Linux: &criapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/p"}}))
	r.must(r.container("p", "c", nil), r.run("c"), r.container("p", "idle", nil), r.pod("down", nil), r.down(steps.Sandbox, steps.Destroy, "down"))
	list, err := r.client.ListPodSandboxMetrics(t.Context(), &criapi.ListPodSandboxMetricsRequest{})
	r.must(err)
	if len(list.GetPodMetrics()) != 1 || list.GetPodMetrics()[0].GetPodSandboxId() != "p" {
		t.Fatalf("the pods are %v", list)
	}
	p := list.GetPodMetrics()[0]
	if len(p.GetContainerMetrics()) != 1 || p.GetContainerMetrics()[0].GetContainerId() != "c" {
		t.Fatalf("the containers are %v", p.GetContainerMetrics())
	}
	described, err := r.client.ListMetricDescriptors(t.Context(), &criapi.ListMetricDescriptorsRequest{})
	r.must(err)
	keys := map[string][]string{}
	for _, d := range described.GetDescriptors() {
		keys[d.GetName()] = d.GetLabelKeys()
	}
	of := func(all []*criapi.Metric, name string) (uint64, map[string]string) {
		i := slices.IndexFunc(all, func(m *criapi.Metric) bool { return m.GetName() == name })
		if i < 0 || len(keys[name]) != len(all[i].GetLabelValues()) {
			t.Fatalf("%s is not there or has other labels than described", name)
		}
		labels := map[string]string{}
		for n, k := range keys[name] {
			labels[k] = all[i].GetLabelValues()[n]
		}
		return all[i].GetValue().GetValue(), labels
	}
	used, labels := of(p.GetContainerMetrics()[0].GetMetrics(), "container_memory_working_set_bytes")
	if used != 6000 || labels["container"] != "name-c" || labels["name"] != "c" || labels["pod"] != "name-p" || labels["namespace"] != "ns" ||
		labels["id"] != oneCgroup || labels["image"] != "example.org/app:1" {
		t.Errorf("%d of %v", used, labels)
	}
	if used, labels = of(p.GetMetrics(), "container_cpu_usage_seconds_total"); used != 2 || labels["container"] != "" || labels["name"] != "p" || labels["id"] != "/kubepods/p" {
		t.Errorf("the pod: %d of %v", used, labels)
	}
}

func TestUpdatePodSandboxResources(t *testing.T) {
	r := newRig(t)
	asked := &criapi.LinuxContainerResources{CpuShares: 2}
	r.must(r.pod("pod1", &criapi.PodSandboxConfig{Linux: &criapi.LinuxPodSandboxConfig{Resources: asked, Overhead: asked}}))
	p, err := r.findPod("pod1")
	r.must(err)
	if !proto.Equal(p.resources(), asked) || !proto.Equal(p.overhead(), asked) {
		t.Errorf("before an update: %v, %v", p.resources(), p.overhead())
	}
	want := &criapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, MemoryLimitInBytes: 1 << 30}
	_, err = r.client.UpdatePodSandboxResources(t.Context(), &criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "pod1", Resources: want})
	r.must(err)
	p, err = r.findPod("pod1")
	r.must(err)
	if !proto.Equal(p.resources(), want) || !proto.Equal(p.overhead(), asked) {
		t.Errorf("after an update: %v, %v", p.resources(), p.overhead())
	}
	r.journal.mu.Lock()
	record := string(r.journal.data["sandbox/pod1"])
	r.journal.mu.Unlock()
	if !strings.Contains(record, "1073741824") {
		t.Errorf("the journal has %s", record)
	}
	status, err := r.client.PodSandboxStatus(t.Context(), &criapi.PodSandboxStatusRequest{PodSandboxId: "pod1", Verbose: true})
	r.must(err)
	if !strings.Contains(status.GetInfo()["info"], "1073741824") {
		t.Errorf("the verbose status is %v", status.GetInfo())
	}
}

func TestUpdatePodSandboxResourcesRefused(t *testing.T) {
	r := newRig(t)
	r.must(r.pod("pod1", nil), r.pod("stopped", nil), r.down(steps.Sandbox, steps.Destroy, "stopped"))
	for _, c := range []struct {
		request *criapi.UpdatePodSandboxResourcesRequest
		want    codes.Code
		names   string
	}{
		{&criapi.UpdatePodSandboxResourcesRequest{}, codes.InvalidArgument, "id"},
		{&criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "none"}, codes.NotFound, "none"},
		{&criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "stopped"}, codes.FailedPrecondition, "stopped"},
		{&criapi.UpdatePodSandboxResourcesRequest{PodSandboxId: "pod1", Overhead: &criapi.LinuxContainerResources{CpuShares: -1}}, codes.InvalidArgument, "overhead.cpu_shares"},
		{
			&criapi.UpdatePodSandboxResourcesRequest{
				PodSandboxId: "pod1", Overhead: &criapi.LinuxContainerResources{CpuShares: 7},
				Resources: &criapi.LinuxContainerResources{CpusetCpus: "x"},
			}, codes.InvalidArgument, "resources.cpuset_cpus",
		},
	} {
		_, err := r.client.UpdatePodSandboxResources(t.Context(), c.request)
		if interceptors.Code(err) != c.want || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%v: %v, want %v", c.request, err, c.want)
		}
	}
	p, err := r.findPod("pod1")
	r.must(err)
	if p.overhead().GetCpuShares() != 0 {
		t.Error("half of a refused update was kept")
	}
}
