// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

var metrics = []check{
	{name: "Kubelet: stats summary of pod and container", run: summary},
	{name: "Kubelet: resource metrics", run: resourceMetrics},
	{name: "Kubelet: events of the runtime, if it asks for them (EventedPLEG)", run: events},
	{name: "Kubelet: cAdvisor metrics, with the names of pods", run: cadvisorMetrics},
}

// busy starts a pod on the node that uses processor, memory, disk and network.
func (e *env) busy(ctx context.Context) error {
	p := server("busy")
	p.Spec.NodeName = e.node().Name
	c := container("work", "head -c 3000000 /dev/urandom > /tmp/blob; while :; do gzip -c /tmp/blob > /dev/null; wget -q -O /dev/null http://127.0.0.1:8080/hostname || true; sleep 0.1; done")
	c.Resources.Requests, c.Resources.Limits = amounts("cpu", "10m", "memory", "32Mi"), amounts("cpu", "200m", "memory", "64Mi")
	p.Spec.Containers = append(p.Spec.Containers, c)
	_, err := e.start(ctx, p)
	return err
}

// kubelet reads a page of the kubelet of the node, through the API server.
func (e *env) kubelet(ctx context.Context, path string) ([]byte, error) {
	return e.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", e.node().Name, "proxy", path).DoRaw(ctx)
}

// usage is a part of the kubelet's summary.
type usage struct {
	CPU struct {
		UsageCoreNanoSeconds uint64
		UsageNanoCores       uint64
	}
	Memory struct{ WorkingSetBytes uint64 }
}

// podStats is a pod in the kubelet's summary.
type podStats struct {
	usage
	PodRef struct{ Name, Namespace string }

	Network      struct{ RxBytes, TxBytes uint64 }
	ProcessStats struct {
		ProcessCount uint64 `json:"process_count"`
	} `json:"process_stats"`
	EphemeralStorage struct{ UsedBytes uint64 } `json:"ephemeral-storage"`
	Containers       []struct {
		usage
		Name   string
		Rootfs struct{ UsedBytes, InodesUsed uint64 }
		Logs   struct{ AvailableBytes uint64 }
	}
}

func summary(ctx context.Context, e *env) error {
	if err := e.busy(ctx); err != nil {
		return err
	}
	// The kubelet looks every ten seconds or so.
	return eventually(ctx, 500*time.Millisecond, func(ctx context.Context) error {
		raw, err := e.kubelet(ctx, "stats/summary")
		if err != nil {
			return err
		}
		var s struct {
			Node struct{ usage }
			Pods []podStats
		}
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		for i := range s.Pods {
			if p := &s.Pods[i]; p.PodRef.Name == "busy" && p.PodRef.Namespace == e.ns {
				return errors.Join(p.wrong(), s.Node.wrong("node"))
			}
		}
		return fmt.Errorf("the pod is not in it:\n%s", raw)
	})
}

// wrong tells what cannot be, or is missing, in an account.
func (u usage) wrong(of string) error {
	if u.CPU.UsageCoreNanoSeconds == 0 || u.CPU.UsageNanoCores == 0 || u.Memory.WorkingSetBytes == 0 {
		return fmt.Errorf("%s: processor or memory is missing: %+v", of, u)
	}
	return nil
}

func (p *podStats) wrong() error {
	errs := []error{p.usage.wrong("pod"), equal("containers", len(p.Containers), 2)}
	if p.Network.RxBytes == 0 || p.Network.TxBytes == 0 {
		errs = append(errs, fmt.Errorf("network is missing: %+v", p.Network))
	}
	if p.EphemeralStorage.UsedBytes == 0 {
		errs = append(errs, errors.New("ephemeral storage is missing"))
	}
	if p.ProcessStats.ProcessCount == 0 {
		errs = append(errs, errors.New("the number of processes is missing"))
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		errs = append(errs, c.wrong("container "+c.Name))
		if c.Logs.AvailableBytes == 0 {
			errs = append(errs, fmt.Errorf("container %s: the file system of its log is missing", c.Name))
		}
		if c.Name == "work" && (c.Rootfs.UsedBytes < 3000000 || c.Rootfs.InodesUsed == 0) {
			errs = append(errs, fmt.Errorf("container work wrote 3 MB, its root file system has %+v", c.Rootfs))
		}
	}
	return errors.Join(errs...)
}

// series waits until a page of the kubelet has series for the pod of this check: each a name
// and what else must be in its labels; the value must not be zero.
func (e *env) series(ctx context.Context, path string, wanted ...[2]string) error {
	return eventually(ctx, 500*time.Millisecond, func(ctx context.Context) error {
		raw, err := e.kubelet(ctx, path)
		if err != nil {
			return err
		}
		lines := strings.Split(string(raw), "\n")
		var errs []error
		for _, w := range wanted {
			if !e.hasSeries(lines, w[0], w[1]) {
				errs = append(errs, fmt.Errorf("no %s with %s, or it is zero", w[0], w[1]))
			}
		}
		return errors.Join(errs...)
	})
}

func (e *env) hasSeries(lines []string, name, labels string) bool {
	for _, l := range lines {
		if strings.HasPrefix(l, name+"{") && strings.Contains(l, `namespace="`+e.ns+`"`) &&
			strings.Contains(l, `pod="busy"`) && strings.Contains(l, labels) {
			value := strings.Fields(l[strings.LastIndex(l, "}")+1:])
			return len(value) > 0 && value[0] != "0"
		}
	}
	return false
}

func resourceMetrics(ctx context.Context, e *env) error {
	if err := e.busy(ctx); err != nil {
		return err
	}
	return e.series(ctx, "metrics/resource",
		[2]string{"container_cpu_usage_seconds_total", `container="work"`},
		[2]string{"container_memory_working_set_bytes", `container="work"`},
		[2]string{"container_start_time_seconds", `container="work"`},
		[2]string{"pod_cpu_usage_seconds_total", ""},
		[2]string{"pod_memory_working_set_bytes", ""})
}

func cadvisorMetrics(ctx context.Context, e *env) error {
	if err := e.busy(ctx); err != nil {
		return err
	}
	return e.series(ctx, "metrics/cadvisor",
		[2]string{"container_cpu_usage_seconds_total", `container="work"`},
		[2]string{"container_memory_working_set_bytes", `container="work"`},
		[2]string{"container_memory_usage_bytes", `container="work"`},
		[2]string{"container_spec_memory_limit_bytes", `container="work"`},
		[2]string{"container_processes", `container="work"`},
		[2]string{"container_network_receive_bytes_total", `interface="eth0"`},
		[2]string{"container_network_transmit_bytes_total", `interface="eth0"`})
}

// events looks whether the kubelet has a connection for the runtime's events if its
// configuration says so, and none otherwise.
func events(ctx context.Context, e *env) error {
	raw, err := e.kubelet(ctx, "configz")
	if err != nil {
		return err
	}
	var config struct {
		KubeletConfig struct{ FeatureGates map[string]bool }
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		return err
	}
	p := shell("brief", "echo brief")
	p.Spec.NodeName = e.node().Name
	if err := e.prints(ctx, p, "brief"); err != nil {
		return err
	}
	raw, err = e.kubelet(ctx, "metrics")
	if err != nil {
		return err
	}
	value := func(name string) string {
		for _, line := range strings.Split(string(raw), "\n") {
			if rest, ok := strings.CutPrefix(line, name+" "); ok && rest != "0" {
				return rest
			}
		}
		return "none"
	}
	connected, failed := value("kubelet_evented_pleg_connection_success_count"), value("kubelet_evented_pleg_connection_error_count")
	want := map[bool]string{true: "1", false: "none"}[config.KubeletConfig.FeatureGates["EventedPLEG"]]
	return errors.Join(equal("connections", connected, want), equal("failed connections", failed, "none"))
}
