// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cri/metrics"
	"github.com/sandflow-cri/sandflow/cri/pieces"
	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// ListMetricDescriptors tells which metrics there are. It never changes while the
// daemon runs.
func (s *Server) ListMetricDescriptors(context.Context, *runtime.ListMetricDescriptorsRequest) (*runtime.ListMetricDescriptorsResponse, error) {
	return &runtime.ListMetricDescriptorsResponse{Descriptors: metrics.Descriptors()}, nil
}

// ListPodSandboxMetrics gives the metrics of the ready pods and their running containers.
func (s *Server) ListPodSandboxMetrics(ctx context.Context, _ *runtime.ListPodSandboxMetricsRequest) (*runtime.ListPodSandboxMetricsResponse, error) {
	return &runtime.ListPodSandboxMetricsResponse{PodMetrics: slices.Collect(s.listPodMetrics(ctx))}, nil
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in pieces.
func (s *Server) StreamPodSandboxMetrics(_ *runtime.StreamPodSandboxMetricsRequest, out runtime.RuntimeService_StreamPodSandboxMetricsServer) error {
	return pieces.Send(out.Context(), s.listPodMetrics(out.Context()), func(piece []*runtime.PodSandboxMetrics) error {
		return out.Send(&runtime.StreamPodSandboxMetricsResponse{PodSandboxMetrics: piece})
	})
}

func (s *Server) listPodMetrics(ctx context.Context) iter.Seq[*runtime.PodSandboxMetrics] {
	return func(yield func(*runtime.PodSandboxMetrics) bool) {
		g := gauger{Server: s, disk: s.diskOf(ctx), size: s.layerUse.list(ctx, metricsWait), devices: map[[2]uint64]string{}}
		members := s.containersByPod()
		for _, v := range s.engine.List(steps.Sandbox) {
			p := newPod(v)
			if p.state() == runtime.PodSandboxState_SANDBOX_READY && !yield(g.pod(ctx, p, members[p.ID])) {
				return
			}
		}
	}
}

// gauger makes the metrics of one call. What cannot be read is left out: it hides
// nothing else.
type gauger struct {
	*Server
	disk    *stats.FileSystem // that writable layers are on; nil if it is not known
	size    func(id string) (size, bool)
	devices map[[2]uint64]string
}

// diskOf is looked up once for all: nodes with thousands of containers have as many mounts.
func (s *Server) diskOf(ctx context.Context) *stats.FileSystem {
	fs, err := s.layers.ImageFS(ctx)
	if err == nil {
		var disk stats.FileSystem
		if disk, err = stats.FileSystemOf(fs.Mountpoint); err == nil {
			return &disk
		}
	}
	klog.FromContext(ctx).V(2).Info("No metrics of file systems", "err", err)
	return nil
}

func (g gauger) pod(ctx context.Context, p pod, containers []container) *runtime.PodSandboxMetrics {
	told := &runtime.PodSandboxMetrics{PodSandboxId: p.ID}
	sample := metrics.Sample{Seen: time.Now(), Started: time.Unix(0, p.created()), DeviceName: g.deviceName}
	labels := metrics.Labels{Name: p.ID, Namespace: p.config.GetMetadata().GetNamespace(), Pod: p.config.GetMetadata().GetName()}
	if dir, own := spec.PodCgroup(g.config, p.config); own {
		labels.ID = dir
		sample.Detail = g.detail(ctx, p.ID, dir)
	}
	if ns, ok, err := steps.PodNamespaces.Get(p.View); err == nil && ok {
		if sample.Interfaces, err = g.stats.Interfaces(ns.Net); err != nil {
			klog.FromContext(ctx).V(2).Info("No metrics of a network", "sandbox", p.ID, "err", err)
		}
	}
	told.Metrics = metrics.Collect(labels, sample)
	for _, c := range containers {
		if c.running() != nil {
			continue
		}
		if m := g.container(ctx, p, c); m != nil {
			told.ContainerMetrics = append(told.ContainerMetrics, m)
		}
	}
	return told
}

// container gives nil for a container that has just ended.
func (g gauger) container(ctx context.Context, p pod, c container) *runtime.ContainerMetrics {
	cgroup, err := steps.CgroupPath(c.View)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Left out of the metrics", "container", c.ID, "err", err)
		return nil
	}
	task, _, _ := steps.ContainerTask.Get(c.View) // without one the start is not known
	sample := metrics.Sample{
		Detail: g.detail(ctx, c.ID, cgroups.Dir(cgroup)),
		Seen:   time.Now(), Started: task.Started, DeviceName: g.deviceName,
	}
	if sample.Detail == nil {
		return nil
	}
	files, sockets := stats.Descriptors(sample.Detail.PIDs)
	sample.Processes = &metrics.Processes{Count: uint64(len(sample.Detail.PIDs)), Files: files, Sockets: sockets}
	if n, ok := stats.OpenFilesLimit(task.PID); ok {
		sample.Processes.OpenFiles = &n
	}
	sample.Disk = g.layer(c)
	return &runtime.ContainerMetrics{ContainerId: c.ID, Metrics: metrics.Collect(metrics.Labels{
		Container: c.config.GetMetadata().GetName(), ID: cgroups.Dir(cgroup),
		Image: c.image().GetImage(), Name: c.ID,
		Namespace: p.config.GetMetadata().GetNamespace(), Pod: p.config.GetMetadata().GetName(),
	}, sample)}
}

func (g gauger) detail(ctx context.Context, id, dir string) *stats.Detail {
	d, err := g.stats.DetailOf(ctx, dir)
	if err != nil {
		if !errors.Is(err, errdefs.ErrNotFound) {
			klog.FromContext(ctx).V(2).Info("No metrics of a cgroup", "id", id, "err", err)
		}
		return nil
	}
	return d
}

func (g gauger) layer(c container) *metrics.Disk {
	if g.disk == nil {
		return nil
	}
	usage, ok := g.size(c.ID)
	if !ok {
		return nil
	}
	return &metrics.Disk{FileSystem: *g.disk, Used: uint64(max(usage.Bytes, 0))} //nolint:gosec // not negative
}

func (g gauger) deviceName(major, minor uint64) string {
	key := [2]uint64{major, minor}
	if g.devices[key] == "" {
		g.devices[key] = stats.DeviceName(major, minor)
	}
	return g.devices[key]
}
