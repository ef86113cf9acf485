// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"iter"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cri/pieces"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// The lists are sequences over one picture of what there is, so that each item
// comes once. The List RPCs collect them, the Stream RPCs send them in pieces.

func (s *Server) listPods(f *runtime.PodSandboxFilter) iter.Seq[*runtime.PodSandbox] {
	return func(yield func(*runtime.PodSandbox) bool) {
		for _, v := range s.engine.List(steps.Sandbox) {
			p := newPod(v)
			if !p.listed() {
				continue
			}
			if item := p.summary(); matchPod(item, f) && !yield(item) {
				return
			}
		}
	}
}

func (s *Server) listContainers(f *runtime.ContainerFilter) iter.Seq[*runtime.Container] {
	return func(yield func(*runtime.Container) bool) {
		for _, v := range s.engine.List(steps.Container) {
			c := newContainer(v)
			if !c.listed() {
				continue
			}
			if item := c.summary(); matchContainer(item, f) && !yield(item) {
				return
			}
		}
	}
}

// listContainerStats is of the running containers. One that has just ended, or
// whose cgroup cannot be read, hides no other.
func (s *Server) listContainerStats(ctx context.Context, f *runtime.ContainerStatsFilter) iter.Seq[*runtime.ContainerStats] {
	layer := s.layersOfList(ctx)
	return sideBySide(s.engine.List(steps.Container), func(v *engine.View) (*runtime.ContainerStats, bool) {
		c := newContainer(v)
		if c.running() != nil || !hasPrefix(c.ID, f.GetId()) ||
			!hasPrefix(c.request.PodID, f.GetPodSandboxId()) || !hasLabels(c.config.GetLabels(), f.GetLabelSelector()) {
			return nil, false
		}
		told, _, err := s.containerStats(ctx, c, layer)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Left out of the stats", "container", c.ID, "err", err)
		}
		return told, err == nil
	})
}

// listPodStats is of the ready pods.
func (s *Server) listPodStats(ctx context.Context, f *runtime.PodSandboxStatsFilter) iter.Seq[*runtime.PodSandboxStats] {
	members, layer := s.containersByPod(), s.layersOfList(ctx)
	return sideBySide(s.engine.List(steps.Sandbox), func(v *engine.View) (*runtime.PodSandboxStats, bool) {
		p := newPod(v)
		if p.state() != runtime.PodSandboxState_SANDBOX_READY ||
			!hasPrefix(p.ID, f.GetId()) || !hasLabels(p.config.GetLabels(), f.GetLabelSelector()) {
			return nil, false
		}
		told, err := s.podStats(ctx, p, members[p.ID], layer)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Left out of the stats", "sandbox", p.ID, "err", err)
		}
		return told, err == nil
	})
}

// piece is how many subjects are read before the first of them is handed on.
const piece = 64

// sideBySide gives what read makes of each view, in order and without those that it leaves
// out. Reading is mostly waiting for the kernel, so each CPU does some.
func sideBySide[T any](views []*engine.View, read func(*engine.View) (T, bool)) iter.Seq[T] {
	type result struct {
		told T
		ok   bool
	}
	return func(yield func(T) bool) {
		for some := range slices.Chunk(views, piece) {
			results := make([]result, len(some))
			var next atomic.Int64
			var failed atomic.Pointer[any]
			var wg sync.WaitGroup
			for range min(len(some), goruntime.GOMAXPROCS(0)) {
				wg.Go(func() {
					defer func() {
						if p := recover(); p != nil {
							failed.Store(&p)
						}
					}()
					for i := next.Add(1) - 1; i < int64(len(some)); i = next.Add(1) - 1 {
						results[i].told, results[i].ok = read(some[i])
					}
				})
			}
			wg.Wait()
			if p := failed.Load(); p != nil {
				panic(*p) // in the request's own goroutine, where it is the end of that request
			}
			for _, r := range results {
				if r.ok && !yield(r.told) {
					return
				}
			}
		}
	}
}

// containersByPod is containersOf for all pods at once.
func (s *Server) containersByPod() map[string][]container {
	members := map[string][]container{}
	for _, v := range s.engine.List(steps.Container) {
		c := newContainer(v)
		members[c.request.PodID] = append(members[c.request.PodID], c)
	}
	return members
}

// StreamPodSandboxes is ListPodSandbox in pieces.
func (s *Server) StreamPodSandboxes(r *runtime.StreamPodSandboxesRequest, out runtime.RuntimeService_StreamPodSandboxesServer) error {
	return pieces.Send(out.Context(), s.listPods(r.GetFilter()), func(piece []*runtime.PodSandbox) error {
		return out.Send(&runtime.StreamPodSandboxesResponse{PodSandboxes: piece})
	})
}

// StreamContainers is ListContainers in pieces.
func (s *Server) StreamContainers(r *runtime.StreamContainersRequest, out runtime.RuntimeService_StreamContainersServer) error {
	return pieces.Send(out.Context(), s.listContainers(r.GetFilter()), func(piece []*runtime.Container) error {
		return out.Send(&runtime.StreamContainersResponse{Containers: piece})
	})
}

// StreamContainerStats is ListContainerStats in pieces.
func (s *Server) StreamContainerStats(r *runtime.StreamContainerStatsRequest, out runtime.RuntimeService_StreamContainerStatsServer) error {
	return pieces.Send(out.Context(), s.listContainerStats(out.Context(), r.GetFilter()), func(piece []*runtime.ContainerStats) error {
		return out.Send(&runtime.StreamContainerStatsResponse{ContainerStats: piece})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in pieces.
func (s *Server) StreamPodSandboxStats(r *runtime.StreamPodSandboxStatsRequest, out runtime.RuntimeService_StreamPodSandboxStatsServer) error {
	return pieces.Send(out.Context(), s.listPodStats(out.Context(), r.GetFilter()), func(piece []*runtime.PodSandboxStats) error {
		return out.Send(&runtime.StreamPodSandboxStatsResponse{PodSandboxStats: piece})
	})
}
