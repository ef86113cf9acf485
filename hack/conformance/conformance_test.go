// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// TestConformance runs critest, each spec as a subtest, and makes every call. It needs a
// laboratory: "make conformance". SANDFLOW_PEER=containerd runs it against an ordinary
// containerd, to tell a fault of ours from one of the set-up, and SANDFLOW_FOCUS=REGEXP only
// some specs. SANDFLOW_DOCS=1 keeps the results for docs/conformance.md, and writes it.
func TestConformance(t *testing.T) {
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make conformance\"")
	}
	ctx := t.Context()
	peer, focus := os.Getenv("SANDFLOW_PEER") != "", os.Getenv("SANDFLOW_FOCUS")
	registry, d := start(t, l, peer)
	out := filepath.Join(l.Build, "reports")
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := world.Count(ctx, d.World())
	if err != nil {
		t.Fatal(err)
	}
	rpcs := calls(t, d)
	o := Options{Focus: focus, Parallel: 6, NRISocket: d.NRI, Log: filepath.Join(out, "critest.log")}
	specs, err := Run(ctx, l, d, registry.Digest, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Tail())
	}
	report(t, filepath.Join(out, "conformance.txt"), specs)
	if focus == "" {
		document(t, peer, Summarize(specs, rpcs))
	}
	if focus == "" && !peer {
		t.Run("WebSocket", func(t *testing.T) { overWebSocket(t, l, d, registry.Digest) })
	}
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

// start starts the daemon to be tested, and what it needs.
func start(t *testing.T, l *harness.Lab, peer bool) (*images.Registry, *harness.Daemon) {
	t.Helper()
	registry, err := images.Serve(t.Context(), l.Images())
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
	build := l.Sandflow
	if peer {
		build = l.Upstream
	}
	d, err := build(harness.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return registry, d
}

// calls makes every call, while the daemon has nothing yet.
func calls(t *testing.T, d *harness.Daemon) []RPC {
	t.Helper()
	c, err := harness.Dial(d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	rpcs, err := CallAll(t.Context(), c.Conn())
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	for _, r := range rpcs {
		t.Logf("%s %s: %s", r.Service, r.Name, r.Said)
		if !r.Answered && os.Getenv("SANDFLOW_PEER") == "" {
			t.Errorf("%s is not answered: %s", r.Name, r.Said)
		}
	}
	return rpcs
}

// overWebSocket runs the streaming specs with the transport that newer clients use.
func overWebSocket(t *testing.T, l *harness.Lab, d *harness.Daemon, digest v1.Hash) {
	specs, err := Run(t.Context(), l, d, digest, Options{
		Focus: "Streaming", Parallel: 6, Log: filepath.Join(l.Build, "reports", "critest-websocket.log"),
		Flags: []string{"-websocket-exec", "-websocket-attach", "-websocket-portforward"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) == 0 {
		t.Error("no specs ran")
	}
	for _, s := range specs {
		if s.Outcome != Passed {
			t.Errorf("%s: %s: %s", s.Outcome, s.Name, s.Why)
		}
	}
}

// document writes the document, or tells whether it is still true.
func document(t *testing.T, peer bool, r Results) {
	t.Helper()
	write := os.Getenv("SANDFLOW_DOCS") != ""
	if peer {
		if write {
			if err := r.Save(peerFile); err != nil {
				t.Error(err)
			}
		}
		return
	}
	other, err := Peer()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Repeats()
	if err != nil {
		t.Fatal(err)
	}
	text := Document(other, r, again)
	raw, err := os.ReadFile(DocumentPath)
	if err != nil {
		t.Fatal(err)
	}
	old, node := Parts(string(raw))
	if write {
		if err := os.WriteFile(DocumentPath, []byte(text+node), 0o644); err != nil {
			t.Error(err)
		}
		return
	}
	if old != text {
		t.Error("docs/conformance.md is not what the run shows: \"make docs-conformance\" writes it anew")
	}
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
