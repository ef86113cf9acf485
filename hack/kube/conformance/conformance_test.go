// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandflow-cri/sandflow/hack/conformance"
	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// TestNodeConformance runs the specs, each as a subtest. It needs a laboratory and takes long:
// "make node-conformance". SANDFLOW_PEER=containerd runs them on an ordinary containerd, to tell
// a fault of ours from one of the set-up; SANDFLOW_FOCUS=REGEXP only some specs, and
// SANDFLOW_SUITE=e2e or e2e_node only those of one program. SANDFLOW_DOCS=1 keeps the results
// for docs/conformance.md, and writes it.
func TestNodeConformance(t *testing.T) {
	l, ok := harness.Here()
	if !ok || os.Getenv("SANDFLOW_NODE_CONFORMANCE") == "" {
		t.Skip("takes long: run \"make node-conformance\"")
	}
	focus, only := os.Getenv("SANDFLOW_FOCUS"), os.Getenv("SANDFLOW_SUITE")
	o := Options{Runtime: cluster.Embedded, Focus: focus, Parallel: 12, Out: os.Stdout}
	if os.Getenv("SANDFLOW_PEER") != "" {
		o.Runtime = cluster.Upstream
	}
	o.Reports = filepath.Join(l.Build, "reports", "node-conformance-"+string(o.Runtime))
	if err := os.MkdirAll(o.Reports, 0o755); err != nil {
		t.Fatal(err)
	}
	var specs []conformance.Spec
	for _, run := range []struct {
		name string
		run  func() ([]conformance.Spec, error)
	}{
		{"e2e", func() ([]conformance.Spec, error) { return OnCluster(t.Context(), l, o) }},
		{"e2e_node", func() ([]conformance.Spec, error) { return OnMachine(t.Context(), l, o) }},
	} {
		if only != "" && only != run.name {
			continue
		}
		got, err := run.run()
		if err != nil {
			t.Errorf("%s: %v", run.name, err)
		}
		specs = append(specs, got...)
	}
	specs = tidy(specs)
	report(t, filepath.Join(o.Reports, "table.txt"), specs)
	if focus == "" && only == "" {
		document(t, o.Runtime, Summarize(specs))
	}
}

func report(t *testing.T, path string, specs []conformance.Spec) {
	t.Helper()
	table := conformance.Table(specs)
	t.Log("\n" + table)
	if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
		t.Error(err)
	}
	expected, err := Expected()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range specs {
		t.Run(s.Name, func(t *testing.T) {
			switch wrong := conformance.Judge(expected, s); {
			case wrong != "":
				t.Error(wrong)
			case s.Outcome != conformance.Passed:
				t.Skip(s.Why)
			}
		})
	}
}

// document keeps what the run shows and writes our part of the document, or tells whether it is
// still true.
func document(t *testing.T, runtime cluster.Runtime, r Results) {
	t.Helper()
	write := os.Getenv("SANDFLOW_DOCS") != ""
	if write {
		if err := r.Save(runtime); err != nil {
			t.Fatal(err)
		}
	}
	peer, err := Kept(cluster.Upstream)
	if err != nil {
		t.Fatal(err)
	}
	own := r
	if runtime == cluster.Upstream {
		if own, err = Kept(cluster.Embedded); err != nil {
			t.Fatal(err)
		}
	}
	expected, err := Expected()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(DocumentPath)
	if err != nil {
		t.Fatal(err)
	}
	others, old := conformance.Parts(string(raw))
	text := Document(peer, own, expected)
	switch {
	case write:
		if err := os.WriteFile(DocumentPath, []byte(others+text), 0o644); err != nil {
			t.Error(err)
		}
	case old != text && runtime != cluster.Upstream:
		t.Error("docs/conformance.md is not what the run shows: \"make docs-node-conformance\" writes it anew")
	}
}
