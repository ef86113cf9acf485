// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// DocumentPath is the document's place, seen from this package.
const DocumentPath = "../../docs/conformance.md"

const documentHead = `<!-- Made by "make docs-conformance" from what the runs gave; "make conformance" tells if it is no longer so. -->

# Conformance

How sandflow does with critest, the validation suite of the CRI (cri-tools v1.37.0), and with
the calls of the CRI (v0.37.2), beside containerd 2.4.2 and CRI-O 1.37.

- containerd and sandflow ran in the same laboratory, with the same images, runc and network
  plugins. CRI-O is not built here: its totals are those of an earlier run on such a machine,
  and its calls are read off its source (branch release-1.37, made for CRI v0.36.3).
- The kernel of the test machines has no AppArmor: 9 specs cannot run on it with any runtime.
- What containerd skips besides: the digest of an image volume in the mounts of
  ContainerStatus, and two specs about an NRI plugin that joins while containers are made.
- sandflow's column is checked at each "make conformance"; containerd's was measured when
  "make docs-conformance" last ran. The streaming specs are run once more over WebSocket.
- Checkpoints need a CRIU that works on the node's kernel, with any runtime; it does not on that
  of the test machines. Without it the calls say so.

`

// NodeHeading begins the part of the document that is not of this package: that about
// Kubernetes' own tests.
const NodeHeading = "## Kubernetes' node conformance\n"

// Parts divides the document: what Document makes, and the part about Kubernetes' own tests.
func Parts(text string) (critest, node string) {
	if i := strings.Index(text, NodeHeading); i >= 0 {
		return text[:i], text[i:]
	}
	return text, ""
}

// Document is the text of docs/conformance.md, up to NodeHeading.
func Document(peer, own Results, repeats []Repeat) string {
	var b strings.Builder
	b.WriteString(documentHead)
	b.WriteString("## Specs\n\n| group | containerd 2.4.2 | CRI-O 1.37 | sandflow |\n|---|---|---|---|\n")
	for _, g := range own.Order {
		fmt.Fprintf(&b, "| %s | %s | – | %s |\n", g, peer.counts(g), own.counts(g))
	}
	fmt.Fprintf(&b, "| **all** | %s | 124–125 pass, 12–13 skip | %s |\n\n", all(peer), all(own))
	skippedTable(&b, peer, own)
	repeatTable(&b, repeats)
	rpcTable(&b, peer, own)
	return b.String()
}

func all(r Results) string {
	s := fmt.Sprintf("%d pass, %d skip", r.total(Passed), r.total(Skipped))
	if n := r.total(Failed); n > 0 {
		s += fmt.Sprintf(", %d fail", n)
	}
	return s
}

// skippedTable lists the specs that one of the two does not run.
func skippedTable(b *strings.Builder, peer, own Results) {
	b.WriteString("Specs that are skipped:\n\n| spec | containerd 2.4.2 | sandflow |\n|---|---|---|\n")
	seen := map[string]bool{}
	for _, name := range slices.Concat(peer.Skipped, own.Skipped) {
		if seen[name] {
			continue
		}
		seen[name] = true
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, skips(slices.Contains(peer.Skipped, name)), skips(slices.Contains(own.Skipped, name)))
	}
	b.WriteByte('\n')
}

func skips(yes bool) string {
	if yes {
		return Skipped
	}
	return Passed
}

// crioLacks are the calls that CRI-O's server has no method for.
var crioLacks = []string{"CheckpointPod", "RestorePod"}

// rpcTable lists all calls, and who knows them.
func rpcTable(b *strings.Builder, peer, own Results) {
	known := map[string]bool{}
	answered := 0
	for _, r := range peer.RPCs {
		known[r.Service+r.Name] = r.Answered
		if r.Answered {
			answered++
		}
	}
	mine := 0
	for _, r := range own.RPCs {
		if r.Answered {
			mine++
		}
	}
	fmt.Fprintf(b, `## Calls

Each call was made with an empty request. "yes" means that the runtime answered it, if only
with what is wrong about the request; "no" that it said Unimplemented. containerd answers %d of
%d, sandflow %d; CRI-O's source has all but those of CRI v0.37.

| service | call | containerd 2.4.2 | CRI-O 1.37 (source) | sandflow |
|---|---|---|---|---|
`, answered, len(own.RPCs), mine)
	for _, r := range own.RPCs {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", r.Service, r.Name,
			yesNo(known[r.Service+r.Name]), yesNo(!slices.Contains(crioLacks, r.Name)), yesNo(r.Answered))
	}
	b.WriteByte('\n')
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
