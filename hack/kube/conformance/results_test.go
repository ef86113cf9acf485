// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/hack/conformance"
)

// The document has a row for each group of specs and for each spec that does not pass, with
// its reason.
func TestDocument(t *testing.T) {
	specs := tidy([]conformance.Spec{
		{Group: "[sig-node] Pods [Serial]", Name: "[sig-node] Pods [Serial] run [Conformance] [NodeConformance]", Outcome: conformance.Passed},
		{Group: "[sig-node] Pods", Name: "[sig-node] Pods walk [NodeConformance] [Slow]", Outcome: conformance.Failed},
		{Group: "[sig-node] Swap", Name: "[sig-node] Swap swims [NodeConformance]", Outcome: conformance.Skipped},
	})
	own := Summarize(specs)
	peer := Summarize(specs[1:])
	delete(peer.Other["[sig-node] Swap"], "[sig-node] Swap swims")
	expected, err := conformance.ParseExpected("fail Pods walk # no legs\nskip Swap # no swap\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		if wrong := conformance.Judge(expected, s); wrong != "" {
			t.Errorf("%s: %s", s.Name, wrong)
		}
	}
	text := Document(peer, own, expected)
	for _, row := range []string{
		"| [sig-node] Pods | 1 fail | 1 pass, 1 fail |", "| **all** | 1 fail | 1 pass, 1 fail, 1 skip |",
		"| [sig-node] Pods walk | fail | fail | no legs |", "| [sig-node] Swap swims | pass | skip | no swap |",
	} {
		if !strings.Contains(text, row+"\n") {
			t.Errorf("no %q in\n%s", row, text)
		}
	}
}

// The document that is there has a reason for each spec that is told to pass with one runtime
// and not with the other, or with none.
func TestDocumentHasReasons(t *testing.T) {
	raw, err := os.ReadFile(DocumentPath)
	if err != nil {
		t.Fatal(err)
	}
	_, text := conformance.Parts(string(raw))
	_, table, _ := strings.Cut(text, "| why |\n|---|---|---|---|\n")
	if text == "" {
		t.Skip("no run has been documented yet: \"make docs-node-conformance\"")
	}
	if table == "" {
		t.Fatal("there is no table of specs that do not pass")
	}
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) != 6 || strings.TrimSpace(cells[4]) == "" {
			t.Errorf("no reason in %s", row)
		}
	}
}
