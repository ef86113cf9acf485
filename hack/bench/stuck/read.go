// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// life is how the lives of other pods are called in the tables.
const life = "a pod's life beside (run, start, stop, remove)"

// reading is one call that must not wait for anything.
type reading struct {
	name string
	call func(ctx context.Context) error
}

// reads are the calls; the first pod is the one whose shim will be frozen.
func (s *side) reads(pods []*pod) []reading {
	some := func() *pod { return pods[rand.IntN(len(pods))] } //nolint:gosec // no secret
	status := func(pick func() *pod) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pick().id})
			return err
		}
	}
	container := func(pick func() *pod) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: pick().ctrs[0]})
			return err
		}
	}
	first := func() *pod { return pods[0] }
	return []reading{
		{"ListPodSandbox", func(ctx context.Context) error {
			_, err := s.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return err
		}},
		{"ListContainers", func(ctx context.Context) error {
			_, err := s.client.ListContainers(ctx, &cri.ListContainersRequest{})
			return err
		}},
		{"PodSandboxStatus of any", status(some)},
		{"PodSandboxStatus of the one with the frozen shim", status(first)},
		{"ContainerStatus of any", container(some)},
		{"ContainerStatus of one with the frozen shim", container(first)},
		{"ListContainerStats", func(ctx context.Context) error {
			_, err := s.client.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
			return err
		}},
		{"ListPodSandboxStats", func(ctx context.Context) error {
			_, err := s.client.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
			return err
		}},
	}
}

// readings does each call many times while other pods start and stop.
func (s *side) readings(ctx context.Context, o options, pods []*pod) (map[string][]time.Duration, error) {
	out := map[string][]time.Duration{}
	beside, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	g.Go(func() (err error) {
		out[life], err = s.lives(beside)
		return err
	})
	reads := s.reads(pods)
	took := make([][]time.Duration, len(reads))
	for round := range o.rounds {
		for i, r := range reads {
			if round > 0 && took[i][0] >= patience { // one that hangs, hangs
				continue
			}
			call, cancel := context.WithTimeout(ctx, patience)
			start := time.Now()
			err := r.call(call)
			d := time.Since(start)
			late := call.Err() != nil
			cancel()
			if err != nil && !late {
				stop()
				_ = g.Wait() // this error comes first
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			took[i] = append(took[i], d)
		}
	}
	stop()
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, r := range reads {
		out[r.name] = took[i]
	}
	return out, nil
}

// table prints both sets of readings, and gives an error if one of the second is over the bound.
func (s *side) table(before, after map[string][]time.Duration) error {
	var slow error
	for _, name := range append(names(s.reads([]*pod{{}})), life) {
		b, a := before[name], after[name]
		price := "" // a life is not the daemon's alone
		if name != life {
			price = ms(s.cost[name])
		}
		fmt.Printf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", name,
			ms(percentile(b, 50)), ms(percentile(b, 99)), ms(percentile(b, 100)),
			ms(percentile(a, 50)), ms(percentile(a, 99)), ms(percentile(a, 100)), price)
		if d := percentile(a, 99); s.bounded && name != life && d > mostRead && slow == nil {
			slow = fmt.Errorf("%s takes %s", name, d)
		}
	}
	return slow
}

// price measures how much time of the CPUs the daemon takes for each call, which does not
// depend on what else the machine does.
func (s *side) price(ctx context.Context, pods []*pod) error {
	const calls = 20
	for _, r := range s.reads(pods) {
		before, err := s.used()
		if err != nil {
			return err
		}
		for range calls {
			if err := r.call(ctx); err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
		after, err := s.used()
		if err != nil {
			return err
		}
		s.cost[r.name] = (after - before) / calls
	}
	return nil
}

// used is what the daemon's threads have used of the CPUs.
func (s *side) used() (time.Duration, error) {
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.daemon.PID()))
	var sum time.Duration
	for _, path := range found {
		raw, rerr := os.ReadFile(path)
		if rerr != nil {
			continue // a thread that has ended
		}
		var running int64 // nanoseconds
		if _, err := fmt.Sscan(string(raw), &running); err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		sum += time.Duration(running)
	}
	return sum, err
}

func names(reads []reading) []string {
	out := make([]string, len(reads))
	for i, r := range reads {
		out[i] = r.name
	}
	return out
}
