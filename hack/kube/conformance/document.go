// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"

	"github.com/sandflow-cri/sandflow/hack/conformance"
)

// DocumentPath is the document's place, seen from this package.
const DocumentPath = "../" + conformance.DocumentPath

const head = conformance.NodeHeading + `
The specs of Kubernetes v1.37.2 that are marked [NodeConformance] and need no outside network:
those of e2e.test against a cluster of two nodes, and those that only e2e_node.test has on a
machine with systemd, where it runs its own kubelet and control plane. Images are served by the
laboratory. containerd and sandflow ran with the same images, runc and network plugins; "make
node-conformance" checks sandflow's column, and containerd's was measured when "make
docs-node-conformance" last ran.

| group | containerd 2.4.2 | sandflow |
|---|---|---|
`

// Document is the part of docs/conformance.md that this package has.
func Document(peer, own Results, expected []conformance.Expectation) string {
	var b strings.Builder
	b.WriteString(head)
	groups := own.groups()
	for _, g := range groups {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", g, peer.counts(g), own.counts(g))
	}
	fmt.Fprintf(&b, "| **all** | %s | %s |\n\n", peer.counts(peer.groups()...), own.counts(groups...))
	b.WriteString("Specs that do not pass with one of the two:\n\n| spec | containerd 2.4.2 | sandflow | why |\n|---|---|---|---|\n")
	for _, g := range groups {
		for _, name := range notPassed(g, peer, own) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, peer.outcome(g, name), own.outcome(g, name), reason(name, expected))
		}
	}
	return b.String()
}

// notPassed are the specs of a group that did not pass with one of the two, in order.
func notPassed(group string, all ...Results) []string {
	seen := map[string]bool{}
	for _, r := range all {
		for name := range r.Other[group] {
			seen[name] = true
		}
	}
	return sorted(seen)
}

func reason(name string, expected []conformance.Expectation) string {
	for _, e := range expected {
		if e.Name.MatchString(name) {
			return e.Reason
		}
	}
	return ""
}
