// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strings"
	"testing"
)

// All specs have run several times in both ways, and each time as expected.
func TestRepeats(t *testing.T) {
	all, err := Repeats()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(DocumentPath)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[int]int{}
	for i, r := range all {
		runs[r.Parallel]++
		if r.Failed > 0 || len(r.Unexpected) > 0 || r.Passed != 128 {
			t.Errorf("run %d: %+v", i+1, r)
		}
	}
	var b strings.Builder
	repeatTable(&b, all)
	if runs[1] != repeats || runs[6] != repeats || !strings.Contains(string(raw), b.String()) {
		t.Errorf("runs %v; the document is to have\n%s", runs, b.String())
	}
}

// What is written is read again as it was, with a part about Kubernetes' own tests and without.
func TestParts(t *testing.T) {
	for _, node := range []string{"", NodeHeading + "\nmore\n"} {
		text := Document(Results{}, Results{}, nil)
		if a, b := Parts(text + node); a != text || b != node {
			t.Errorf("divided into %q and %q", a, b)
		}
	}
}

// The document has a row for each call and each group, which needs no laboratory to see.
func TestDocumentIsWhole(t *testing.T) {
	peer, err := Peer()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(DocumentPath)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if len(peer.RPCs) != 43 || len(peer.Groups) == 0 {
		t.Errorf("the peer has %d calls and %d groups", len(peer.RPCs), len(peer.Groups))
	}
	for _, r := range peer.RPCs {
		if !strings.Contains(text, "| "+r.Service+" | "+r.Name+" | ") {
			t.Errorf("no row for %s", r.Name)
		}
	}
	for g := range peer.Groups {
		if !strings.Contains(text, "| "+g+" | ") {
			t.Errorf("no row for group %s", g)
		}
	}
}

func TestSummarize(t *testing.T) {
	r := Summarize([]Spec{{Group: "a", Name: "a 1", Outcome: Passed}, {Group: "a", Name: "a 2", Outcome: Skipped}, {Group: "b", Name: "b", Outcome: Failed}},
		[]RPC{{Service: "S", Name: "N", Answered: true}})
	text := Document(Results{}, r, []Repeat{{Parallel: 6, Passed: 128, Skipped: 9, Seconds: 140}})
	for _, row := range []string{
		"| a | none | – | 1 pass, 1 skip |", "| b | none | – | 1 fail |", "| a 2 | pass | skip |", "1 pass, 1 skip, 1 fail", "| S | N | no | yes | yes |",
		"| 1 | 6 | 128 | 9 | 0 | 140 |",
	} {
		if !strings.Contains(text, row) {
			t.Errorf("no %q in\n%s", row, text)
		}
	}
}
