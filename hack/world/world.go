// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package world compares what is on a node before and after, so that a test or the demo can
// show that nothing was left behind. What there is, it has from the runtime's own list.
package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"

	"github.com/sandflow-cri/sandflow/steps/world"
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

// Count looks at the node as it is now, which must have nothing but the runtime.
func Count(ctx context.Context, w Where) (_ World, err error) {
	out := World{}
	look := world.Where{
		State: w.State, Root: w.Root, CgroupParent: w.CgroupParent, Node: true,
	}
	if w.Leases != "" {
		look.AddressDirs = []string{w.Leases}
	}
	if w.Containerd != "" {
		c, err := client.New(w.Containerd, client.WithTimeout(10*time.Second))
		if err != nil {
			return nil, fmt.Errorf("could not reach containerd at %s: %w", w.Containerd, err)
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		look.Client = c
	}
	things, err := world.List(ctx, look)
	if err != nil {
		return nil, fmt.Errorf("could not count what is on the node: %w", err)
	}
	for _, kind := range everyKind {
		out[kind] = nil
	}
	for _, t := range things {
		if t.Kind == world.Processes && (!w.Processes || slices.Contains(w.IgnoreProcesses, t.Name)) {
			continue
		}
		out[t.Kind] = append(out[t.Kind], t.Name)
	}
	for _, kind := range w.Without {
		delete(out, kind)
	}
	for _, names := range out {
		sort.Strings(names)
	}
	return out, nil
}

// everyKind is shown even if there is none of it.
var everyKind = []string{
	world.NamespacePins, world.Mounts, world.Links, world.Rules, world.Addresses, world.Snapshots, world.Leases,
	world.LeasedContent, world.Cgroups, world.Processes, world.ListeningSockets, world.Sockets, world.FIFOs,
	world.Files, world.Directories, world.RuntimeStates, world.CacheEntries,
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
		if kind == world.SnapshotDirectories {
			continue // containerd removes those of removed snapshots in its own time
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
