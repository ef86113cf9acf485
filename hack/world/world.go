// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package world counts everything that a pod may leave behind on a node, so that a
// test or the demo can show that the node is the same before and after.
package world

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// World is what there is, by kind; the names of one kind are sorted.
type World map[string][]string

// Where says where to look. An empty field leaves its kinds out.
type Where struct {
	// State and Root are the daemon's directories: sockets, directories and files are counted
	// there, but for those of containerd itself, which come and go on their own.
	State, Root string
	// Leases is the data directory of CNI's host-local plugin.
	Leases string
	// CgroupParent is the cgroup path below which cgroups are counted, in every hierarchy.
	CgroupParent string
	// Containerd is the socket of containerd's API; kinds of the namespace k8s.io are counted.
	Containerd string
	// Processes counts all processes of this PID namespace.
	Processes bool
	// IgnoreProcesses are command names left out.
	IgnoreProcesses []string
	// Without are kinds that are not counted.
	Without []string
}

// counter adds one or more kinds to a world.
type counter func(ctx context.Context, w Where, out World) error

var counters = []counter{mounts, links, rules, leases, files, cgroups, processes, sockets, containerd}

// Count looks at the node as it is now.
func Count(ctx context.Context, w Where) (World, error) {
	out := World{}
	for _, c := range counters {
		if err := c(ctx, w, out); err != nil {
			return nil, fmt.Errorf("could not count what is on the node: %w", err)
		}
	}
	for _, kind := range w.Without {
		delete(out, kind)
	}
	for _, names := range out {
		sort.Strings(names)
	}
	return out, nil
}

// Settle counts until the world is like want, for at most the given time, since some
// things end on their own a moment later. It returns the last difference: empty if all is well.
func Settle(ctx context.Context, w Where, want World, limit time.Duration) (string, error) {
	deadline := time.Now().Add(limit)
	for {
		now, err := Count(ctx, w)
		if err != nil {
			return "", err
		}
		diff := Diff(want, now)
		if diff == "" || time.Now().After(deadline) {
			return diff, nil
		}
		select {
		case <-ctx.Done():
			return diff, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Diff lists what is only in one of two worlds, a line each: "+" what came, "-" what went.
func Diff(before, after World) string {
	var b strings.Builder
	for _, kind := range kinds(before, after) {
		for _, name := range minus(after[kind], before[kind]) {
			fmt.Fprintf(&b, "+ %s: %s\n", kind, name)
		}
		for _, name := range minus(before[kind], after[kind]) {
			fmt.Fprintf(&b, "- %s: %s\n", kind, name)
		}
	}
	return b.String()
}

// Table prints how many there are of each kind in two worlds.
func Table(before, after World) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-22s %8s %8s\n", "", "before", "after")
	for _, kind := range kinds(before, after) {
		fmt.Fprintf(&b, "  %-22s %8d %8d\n", kind, len(before[kind]), len(after[kind]))
	}
	return b.String()
}

func kinds(a, b World) []string {
	var out []string
	for _, w := range []World{a, b} {
		for kind := range w {
			if !slices.Contains(out, kind) {
				out = append(out, kind)
			}
		}
	}
	sort.Strings(out)
	return out
}

// minus is the multiset difference a - b.
func minus(a, b []string) []string {
	have := map[string]int{}
	for _, s := range b {
		have[s]++
	}
	var out []string
	for _, s := range a {
		if have[s] > 0 {
			have[s]--
			continue
		}
		out = append(out, s)
	}
	return out
}
