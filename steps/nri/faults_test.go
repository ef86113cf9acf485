// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/sandflow-cri/sandflow/steps/nri"
)

// TestMain becomes a plugin when it is launched as one (TestLaunchedPlugin).
func TestMain(m *testing.M) {
	if os.Getenv(api.PluginSocketEnvVar) != "" {
		os.Exit(launched())
	}
	os.Exit(m.Run())
}

// launchedPlugin writes what it is told to the file that its configuration names.
type launchedPlugin struct{ file string }

func (l *launchedPlugin) Configure(_ context.Context, config, runtime, _ string) (api.EventMask, error) {
	l.file = strings.TrimSpace(config)
	return 0, os.WriteFile(l.file, []byte("configured by "+runtime), 0o600)
}

func (l *launchedPlugin) RunPodSandbox(_ context.Context, p *api.PodSandbox) error {
	return os.WriteFile(l.file, []byte("told of "+p.GetId()), 0o600)
}

func launched() int {
	s, err := stub.New(&launchedPlugin{})
	if err != nil || s.Run(context.Background()) != nil {
		return 1
	}
	return 0
}

func TestLaunchedPlugin(t *testing.T) {
	c, n := config(t), &node{}
	self, err := os.Executable()
	fatal(t, err)
	fatal(t, os.MkdirAll(c.PluginPath, 0o700))
	fatal(t, os.MkdirAll(c.PluginConfigPath, 0o700))
	fatal(t, os.Symlink(self, filepath.Join(c.PluginPath, "10-mine")))
	file := filepath.Join(t.TempDir(), "told")
	fatal(t, os.WriteFile(filepath.Join(c.PluginConfigPath, "mine.conf"), []byte(file+"\n"), 0o600))
	c.DisableConnections = true
	m := start(t, c, n)
	says(t, file, "configured by sandflow")
	fatal(t, m.RunPod(t.Context(), "p"))
	says(t, file, "told of p")
	if _, err := net.Dial("unix", c.SocketPath); err == nil {
		t.Error("connections are disabled, and one is taken")
	}
}

func says(t *testing.T, file, want string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || string(text) != want {
		t.Errorf("the plugin says %q (%v), want %q", text, err, want)
	}
}

func TestBadPluginNameIsSaid(t *testing.T) {
	c := config(t)
	fatal(t, os.MkdirAll(c.PluginPath, 0o700))
	fatal(t, os.WriteFile(filepath.Join(c.PluginPath, "nameless"), nil, 0o700)) //nolint:gosec // a program
	m := nri.New(c)
	t.Cleanup(m.Stop)
	if err := m.Start(t.Context(), &node{}); err == nil || !strings.Contains(err.Error(), "nameless") {
		t.Errorf("a plugin without an index: %v", err)
	}
}

// A plugin that hangs is disconnected after its time, and what waited goes on.
func TestHungPluginIsLeftBehind(t *testing.T) {
	c, n := config(t), &node{}
	c.RequestTimeout = 200 * time.Millisecond
	m := start(t, c, n)
	release := make(chan struct{})
	hung := join(t, c, "10", &plugin{name: "hung", onRun: func(context.Context) error {
		<-release
		return nil
	}})
	t.Cleanup(func() { close(release) })
	good := join(t, c, "20", &plugin{name: "good"})
	ctx := t.Context()
	fatal(t, m.RunPod(ctx, "p"))
	fatal(t, m.RunPod(ctx, "q"))
	want(t, good.told(), "RunPodSandbox p", "RunPodSandbox q")
	want(t, hung.told(), "RunPodSandbox p")
}

func TestDeadPluginIsLeftBehind(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	dead := join(t, c, "10", &plugin{name: "dead"})
	good := join(t, c, "20", &plugin{name: "good"})
	ctx := t.Context()
	fatal(t, m.RunPod(ctx, "p"))
	dead.stub.Stop()
	fatal(t, m.RunPod(ctx, "q"))
	m.StopPod(ctx, "q")
	want(t, good.told(), "RunPodSandbox p", "RunPodSandbox q", "StopPodSandbox q")
	again := join(t, c, "10", &plugin{name: "dead"})
	want(t, again.synced, "pod p") // and not the one that has been stopped
}

// A caller in a hurry is no fault of the plugin's, which does not see the end of
// a pod before it is done with its beginning.
func TestCallersDeadlineCostsNoPlugin(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	entered := make(chan struct{}, 2)
	release := make(chan struct{})
	p := join(t, c, "10", &plugin{onRun: func(ctx context.Context) error {
		entered <- struct{}{}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- m.RunPod(ctx, "p") }()
	<-entered
	<-ctx.Done()
	close(release)
	fatal(t, <-ran)
	m.StopPod(t.Context(), "p")
	fatal(t, m.RunPod(t.Context(), "q"))
	want(t, p.told(), "RunPodSandbox p", "StopPodSandbox p", "RunPodSandbox q")
	if err := m.RunPod(ctx, "late"); err == nil {
		t.Error("the caller had gone before")
	}
	m.StopPod(t.Context(), "late")
	if slices.Contains(p.told(), "StopPodSandbox late") {
		t.Error("told of the end of what it was never told of")
	}
}

// Whoever connects and says nothing delays other plugins, and nothing else.
func TestSilentConnection(t *testing.T) {
	c, n := config(t), &node{}
	c.RegistrationTimeout = 300 * time.Millisecond
	m := start(t, c, n)
	conn, err := net.Dial("unix", c.SocketPath)
	fatal(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	fatal(t, m.RunPod(t.Context(), "p"))
	p := join(t, c, "10", &plugin{})
	want(t, p.synced, "pod p")
}

// A plugin that hangs while it takes in what exists holds hooks up no longer
// than its time, and is then not one of those told.
func TestHungSynchronize(t *testing.T) {
	c, n := config(t), &node{}
	c.SyncTimeout = 300 * time.Millisecond
	m := start(t, c, n)
	release, entered := make(chan struct{}), make(chan struct{})
	hung := &plugin{name: "hung", onSync: func() {
		close(entered)
		<-release
	}}
	s, err := stub.New(hung, stub.WithPluginName("hung"), stub.WithPluginIdx("10"), stub.WithSocketPath(c.SocketPath), stub.WithOnClose(func() {}))
	fatal(t, err)
	fatal(t, s.Start(t.Context()))
	t.Cleanup(s.Stop)
	t.Cleanup(func() { close(release) })
	<-entered
	fatal(t, m.RunPod(t.Context(), "p"))
	if told := hung.told(); len(told) > 0 {
		t.Errorf("told %q after it was given up", told)
	}
}

func TestDisabled(t *testing.T) {
	for _, m := range []*nri.Manager{nil, nri.New(nri.Config{})} {
		if m.Enabled() {
			t.Error("enabled")
		}
		ctx := t.Context()
		fatal(t, m.Start(ctx, &node{}))
		fatal(t, m.RunPod(ctx, "p"))
		a, err := m.CreateContainer(ctx, "c", "p")
		if a != nil || err != nil {
			t.Errorf("%v, %v", a, err)
		}
		fatal(t, m.StartContainer(ctx, "c"))
		r, err := m.UpdateContainer(ctx, "c", nil)
		if r != nil || err != nil {
			t.Errorf("%v, %v", r, err)
		}
		m.CreatedContainer(ctx, "c")
		m.RemovePod(ctx, "p")
		m.RemoveContainer(ctx, "c")
		m.Stop()
	}
}

// The socket of another runtime on the node is left to it.
func TestSocketOfAnother(t *testing.T) {
	c := config(t)
	first := start(t, c, &node{})
	second := start(t, c, &node{})
	p := join(t, c, "10", &plugin{})
	fatal(t, second.RunPod(t.Context(), "of the second"))
	fatal(t, first.RunPod(t.Context(), "of the first"))
	want(t, p.told(), "RunPodSandbox of the first")
}
