// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// TestConformance runs critest, each spec as a subtest. It needs a laboratory: "make
// conformance". SANDFLOW_PEER=containerd runs it against an ordinary containerd, to tell a
// fault of ours from one of the set-up, and SANDFLOW_FOCUS=REGEXP only some specs.
func TestConformance(t *testing.T) {
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make conformance\"")
	}
	ctx := t.Context()
	registry, err := images.Serve(ctx, l.Images())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = registry.Close() })
	if err := registry.WriteHosts(l.CertsDir()); err != nil {
		t.Fatal(err)
	}
	if err := l.WriteNetwork(l.ConfDir()); err != nil {
		t.Fatal(err)
	}
	build, peer := l.Sandflow, os.Getenv("SANDFLOW_PEER")
	if peer != "" {
		build = l.Upstream
	}
	d, err := build(harness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(l.Build, "reports")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := world.Count(ctx, d.World())
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Focus: os.Getenv("SANDFLOW_FOCUS"), Parallel: 6, NRISocket: d.NRI, Log: filepath.Join(out, "critest.log")}
	specs, err := Run(ctx, l, d, registry.Digest, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Tail())
	}
	report(t, filepath.Join(out, "conformance.txt"), specs)
	// The suite leaves the bridge, the base rules of the plugins and its images' snapshots.
	diff, err := world.Settle(ctx, d.World(), before, 5*time.Second)
	if err != nil {
		t.Error(err)
	}
	t.Logf("left after critest:\n%s", diff)
	if err := d.Stop(); err != nil {
		t.Errorf("could not stop the daemon in order: %v", err)
	}
	keep(t, d.Log, filepath.Join(out, "conformance-daemon.log"))
}

func report(t *testing.T, path string, specs []Spec) {
	t.Helper()
	table := Table(specs)
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
			switch wrong := Judge(expected, s); {
			case wrong != "":
				t.Error(wrong)
			case s.Outcome != Passed:
				t.Skip(s.Why)
			}
		})
	}
}

func keep(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
