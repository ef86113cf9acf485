// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"slices"
)

// path is what a call passes in the daemon: the flow, the actions in it, and the records it writes.
type path struct {
	flow    string
	actions []string
	down    bool
	records []string
}

var paths = map[Op]path{
	RunPodSandbox: {
		flow:    "sandbox.create",
		actions: []string{"files", "namespaces", "network", "shim", "sandbox-container", "nri-pod"},
		records: []string{"sandbox.climbing.4", "sandbox.standing.ready"},
	},
	CreateContainer: {
		flow:    "container.create",
		actions: []string{"rootfs", "volumes", "spec", "nri-container"},
		records: []string{"container.climbing.4", "container.standing.created"},
	},
	StartContainer: {
		flow:    "container.start",
		actions: []string{"nri-start", "task"},
		records: []string{"container.climbing.6", "container.standing.running"},
	},
	StopContainer: {
		flow:    "container.stop",
		actions: []string{"task", "nri-start"}, down: true,
		records: []string{"container.standing.running", "container.descending.6", "container.standing.created"},
	},
	RemoveContainer: {
		flow:    "container.remove",
		actions: []string{"nri-container", "spec", "volumes", "rootfs"}, down: true,
		records: []string{"container.descending.4", "container.gone"},
	},
	StopPodSandbox: {
		flow:    "sandbox.destroy",
		actions: []string{"nri-pod", "sandbox-container", "shim", "network", "files", "namespaces"}, down: true,
		records: []string{"sandbox.descending.4", "sandbox.standing.reserved"},
	},
	RemovePodSandbox: {flow: "sandbox.cleanup", down: true, records: []string{"sandbox.gone"}},
}

// actionsOf are those that a life's pods pass in a call.
func (l *Life) actionsOf(op Op) []string {
	return slices.DeleteFunc(slices.Clone(paths[op].actions), func(a string) bool {
		return a == "network" && l.HostNetwork || a == "sandbox-container" && l.Handler != Boxed
	})
}

// Handlers of the daemon beside the default.
const (
	// Boxed runs a sandbox container by containerd's own shim.
	Boxed = "boxed"
	// Mortal has an OCI runtime that can be killed.
	Mortal = "mortal"
)

// point names the place of an action in a flow.
func (p path) point(action string) string {
	if p.down {
		return fmt.Sprintf("%s/undo:%s", p.flow, action)
	}
	return fmt.Sprintf("%s/do:%s", p.flow, action)
}

// place is any place in a call where the daemon can be killed.
func (g *generator) place(op Op) string {
	p, actions := paths[op], g.life.actionsOf(op)
	switch n := g.r.IntN(1 + len(actions) + len(p.records)); {
	case n == 0:
		return "flow:" + p.flow
	case n <= len(actions):
		return p.point(actions[n-1])
	default:
		return "journal:" + p.records[n-1-len(actions)]
	}
}
