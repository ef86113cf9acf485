// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// ContainerStats tells what one container uses now.
func (s *Server) ContainerStats(ctx context.Context, r *runtime.ContainerStatsRequest) (*runtime.ContainerStatsResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("stats of container: %w", err)
	}
	told, _, err := s.containerStats(ctx, c, s.layerNow)
	if err != nil {
		return nil, err
	}
	return &runtime.ContainerStatsResponse{Stats: told}, nil
}

// ListContainerStats tells what the running containers use.
func (s *Server) ListContainerStats(ctx context.Context, r *runtime.ListContainerStatsRequest) (*runtime.ListContainerStatsResponse, error) {
	return &runtime.ListContainerStatsResponse{Stats: slices.Collect(s.listContainerStats(ctx, r.GetFilter()))}, nil
}

// containerStats reads a container's cgroup and the size of its writable layer.
// A container that does not run has only the latter.
func (s *Server) containerStats(ctx context.Context, c container, layer layerReader) (*runtime.ContainerStats, *stats.Usage, error) {
	told := &runtime.ContainerStats{Attributes: &runtime.ContainerAttributes{
		Id: c.ID, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
	}}
	var err error
	if told.WritableLayer, err = layer(ctx, c.ID); err != nil {
		return nil, nil, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	if c.state() != runtime.ContainerState_CONTAINER_RUNNING {
		return told, nil, nil
	}
	cgroup, err := steps.CgroupPath(c.View)
	if err != nil {
		return nil, nil, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	usage, err := s.stats.Container(ctx, c.ID, cgroup)
	if errors.Is(err, errdefs.ErrNotFound) {
		return told, nil, nil // it has ended meanwhile
	}
	if err != nil {
		return nil, nil, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	told.Cpu, told.Memory, told.Swap, told.Io = usage.CPU, usage.Memory, usage.Swap, usage.IO
	return told, usage, nil
}

// layerReader gives what a container's writable layer holds; nil if that is not known.
type layerReader func(ctx context.Context, id string) (*runtime.FilesystemUsage, error)

// layerNow measures it.
func (s *Server) layerNow(ctx context.Context, id string) (*runtime.FilesystemUsage, error) {
	usage, err := s.layerUse.now(ctx, id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.layerOf(ctx, usage)
}

// layersOfList gives what is known, for a list.
func (s *Server) layersOfList(ctx context.Context) layerReader {
	known := s.layerUse.list(ctx, layerWait)
	return func(ctx context.Context, id string) (*runtime.FilesystemUsage, error) {
		if usage, ok := known(id); ok {
			return s.layerOf(ctx, usage)
		}
		return nil, nil
	}
}

func (s *Server) layerOf(ctx context.Context, usage size) (*runtime.FilesystemUsage, error) {
	fs, err := s.layers.ImageFS(ctx)
	if err != nil {
		return nil, err
	}
	return &runtime.FilesystemUsage{
		Timestamp:  usage.at.UnixNano(),
		FsId:       &runtime.FilesystemIdentifier{Mountpoint: fs.Mountpoint},
		UsedBytes:  &runtime.UInt64Value{Value: uint64(max(usage.Bytes, 0))},  //nolint:gosec // not negative
		InodesUsed: &runtime.UInt64Value{Value: uint64(max(usage.Inodes, 0))}, //nolint:gosec // not negative
	}, nil
}

// PodSandboxStats tells what one pod uses now.
func (s *Server) PodSandboxStats(ctx context.Context, r *runtime.PodSandboxStatsRequest) (*runtime.PodSandboxStatsResponse, error) {
	p, err := s.readyPod(r.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("stats of sandbox: %w", err)
	}
	told, err := s.podStats(ctx, p, s.containersOf(p.ID), s.layerNow)
	if err != nil {
		return nil, err
	}
	return &runtime.PodSandboxStatsResponse{Stats: told}, nil
}

// ListPodSandboxStats tells what the ready pods use.
func (s *Server) ListPodSandboxStats(ctx context.Context, r *runtime.ListPodSandboxStatsRequest) (*runtime.ListPodSandboxStatsResponse, error) {
	return &runtime.ListPodSandboxStatsResponse{Stats: slices.Collect(s.listPodStats(ctx, r.GetFilter()))}, nil
}

func (s *Server) podStats(ctx context.Context, p pod, containers []container, layer layerReader) (*runtime.PodSandboxStats, error) {
	linux := &runtime.LinuxPodSandboxStats{}
	var members []stats.Member
	for _, c := range containers {
		if c.running() != nil {
			continue
		}
		told, usage, err := s.containerStats(ctx, c, layer)
		if err != nil {
			return nil, fmt.Errorf("stats of sandbox %s: %w", p.ID, err)
		}
		linux.Containers = append(linux.Containers, told)
		if usage != nil {
			members = append(members, stats.Member{ID: c.ID, Usage: usage})
		}
	}
	dir, _ := spec.PodCgroup(s.config, p.config)
	usage, err := s.stats.Pod(ctx, p.ID, dir, members)
	if errors.Is(err, errdefs.ErrNotFound) { // the parent is made with the first container
		usage, err = s.stats.Pod(ctx, p.ID, "", members)
	}
	if err != nil {
		return nil, err
	}
	linux.Cpu, linux.Memory, linux.Io = usage.CPU, usage.Memory, usage.IO
	count, err := usage.Processes()
	if err != nil {
		return nil, fmt.Errorf("stats of sandbox %s: %w", p.ID, err)
	}
	linux.Process = &runtime.ProcessUsage{
		Timestamp: time.Now().UnixNano(), ProcessCount: &runtime.UInt64Value{Value: count},
	}
	if ns, ok, err := steps.PodNamespaces.Get(p.View); err == nil && ok && ns.Net != "" {
		if linux.Network, err = s.stats.Network(ns.Net); err != nil {
			return nil, fmt.Errorf("stats of sandbox %s: %w", p.ID, err)
		}
	}
	return &runtime.PodSandboxStats{
		Attributes: &runtime.PodSandboxAttributes{
			Id: p.ID, Metadata: p.config.GetMetadata(), Labels: p.config.GetLabels(), Annotations: p.config.GetAnnotations(),
		},
		Linux: linux,
	}, nil
}
