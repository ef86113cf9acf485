// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

// testConfig is a daemon of its own in temporary directories. The shim is
// another program: no pod is run.
func testConfig(t *testing.T) *config.Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("", "sf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text := `
root = "DIR/root"
state = "DIR/run"
[runtime]
shim = "DIR/shim"
[metrics]
address = "127.0.0.1:0"
[containerd]
config_path = ""
snapshotter = "native"
[nri]
socket_path = "DIR/nri.sock"
plugin_path = "DIR/nri"
[cni]
conf_dir = "DIR/net.d"
bin_dirs = ["DIR/bin"]
`
	if err := os.WriteFile(filepath.Join(dir, "shim"), nil, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	cfg, err := config.Parse("test.toml", []byte(strings.ReplaceAll(text, "DIR", dir)))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// run starts a daemon and gives what ends it, which returns what Run returned.
func run(t *testing.T, cfg *config.Config) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	ended := false
	stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("the daemon does not end")
		}
	}
	t.Cleanup(func() { _ = stop() })
	for {
		select {
		case err := <-done:
			done <- err
			t.Fatalf("the daemon ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if c, err := net.Dial("unix", cfg.CRI.Socket); err == nil {
			_ = c.Close()
			return stop
		}
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestStartServeStop(t *testing.T) {
	cfg := testConfig(t)
	for range 2 { // the second start finds what the first left
		stop := run(t, cfg)
		v, err := runtime.NewRuntimeServiceClient(dial(t, cfg.CRI.Socket)).Version(t.Context(), &runtime.VersionRequest{})
		if err != nil || v.GetRuntimeVersion() == "" {
			t.Errorf("version: %v, %v", v, err)
		}
		a := admin.NewAdminClient(dial(t, cfg.Admin.Socket))
		flows, err := a.Flows(t.Context(), &admin.FlowsRequest{})
		if err != nil || len(flows.GetFlows()) != 8 || flows.GetFlows()[0].GetLimit() != 100 {
			t.Errorf("flows: %v, %v", flows, err)
		}
		if _, err := a.SetLimit(t.Context(), &admin.SetLimitRequest{Workflow: "image", Flow: "pull", Limit: 3}); err != nil {
			t.Errorf("set the limit of image.pull: %v", err)
		}
		if l, err := a.Timelines(t.Context(), &admin.TimelinesRequest{}); err != nil || len(l.GetSubjects()) != 0 {
			t.Errorf("timelines: %v, %v", l, err)
		}
		if found, err := a.Sweep(t.Context(), &admin.SweepRequest{DryRun: true}); err != nil || len(found.GetFound()) != 0 {
			t.Errorf("sweep: %v, %v", found, err)
		}
		for _, socket := range []string{cfg.CRI.Socket, cfg.Admin.Socket, cfg.Containerd.Socket} {
			if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("socket %s: %v, %v", socket, st, err)
			}
		}
		if err := stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		for _, socket := range []string{cfg.CRI.Socket, cfg.Admin.Socket} {
			if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("socket %s is left: %v", socket, err)
			}
		}
	}
}

// TestWhatIsMissingIsACondition: without an OCI runtime and a network the daemon
// serves, and says why no pod can run.
func TestWhatIsMissingIsACondition(t *testing.T) {
	cfg := testConfig(t)
	h := cfg.Runtime.Handlers["runc"]
	h.Binary = "/nowhere/runc"
	cfg.Runtime.Handlers["runc"] = h
	run(t, cfg)
	r, err := runtime.NewRuntimeServiceClient(dial(t, cfg.CRI.Socket)).Status(t.Context(), &runtime.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.GetStatus().GetConditions() {
		if c.GetType() == "OCIRuntimesSafe" {
			continue // nothing is known against one that is not there
		}
		if c.GetStatus() || c.GetReason() == "" || c.GetMessage() == "" {
			t.Errorf("condition %v", c)
		}
	}
	if got := r.GetStatus().GetConditions()[0].GetMessage(); !strings.Contains(got, "/nowhere/runc") {
		t.Errorf("the message does not name the runtime: %s", got)
	}
	if !strings.Contains(r.GetInfo()["config"], cfg.State) || !strings.Contains(r.GetInfo()["flows"], "create") {
		t.Errorf("info is %v", r.GetInfo())
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	cfg := testConfig(t)
	run(t, cfg)
	if err := Run(t.Context(), cfg); !errors.Is(err, errLocked) || !strings.Contains(err.Error(), cfg.State) {
		t.Errorf("a second daemon: %v", err)
	}
	// The refused one has not harmed the first.
	if _, err := runtime.NewRuntimeServiceClient(dial(t, cfg.CRI.Socket)).Version(t.Context(), &runtime.VersionRequest{}); err != nil {
		t.Errorf("the first daemon: %v", err)
	}
}

func TestRefusedStarts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*testing.T, *config.Config)
		want  string
	}{
		{"no shim", func(_ *testing.T, c *config.Config) { c.Runtime.Shim = "no-such-shim" }, "runtime.shim: there is no program \"no-such-shim\""},
		{"unknown action", func(_ *testing.T, c *config.Config) { c.Workflows.Container.Start.Steps = [][]string{{"tsk"}} }, "workflows.container.start.steps[0][0]: unknown action \"tsk\""},
		{"metrics address taken", func(t *testing.T, c *config.Config) {
			t.Helper()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			c.Metrics.Address = l.Addr().String()
		}, "metrics.address: listen on"},
		{"socket is a file", func(t *testing.T, c *config.Config) {
			t.Helper()
			c.CRI.Socket = filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(c.CRI.Socket, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "cri.socket: "},
		{"broken journal", func(t *testing.T, c *config.Config) {
			t.Helper()
			if err := os.MkdirAll(c.JournalPath(), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "open the journal: "},
		{"no containerd", func(_ *testing.T, c *config.Config) { c.Containerd.Address = "/nowhere/c.sock" }, "start the image store: "},
		{"bad plugin table", func(_ *testing.T, c *config.Config) {
			c.Containerd.Plugins = map[string]any{"io.containerd.server.v1.grpc": map[string]any{"nonsense": 1}}
		}, "nonsense: unknown key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t)
			tt.spoil(t, cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := Run(ctx, cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %s", err, tt.want)
			}
		})
	}
}

func TestToldToStopWhileStarting(t *testing.T) {
	cfg := testConfig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, cfg); err != nil {
		t.Errorf("error is %v", err)
	}
}

// TestNotify: systemd is told when the daemon serves and when it stops.
func TestNotify(t *testing.T) {
	cfg := testConfig(t)
	socket := filepath.Join(filepath.Dir(cfg.Root), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv("NOTIFY_SOCKET", socket)
	stop := run(t, cfg)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		b := make([]byte, 100)
		n, err := l.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("told %q, %v; want %s", b[:n], err, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want int
	}{
		{[]string{"--version"}, 0},
		{[]string{"--help"}, 0},
		{[]string{"--loud"}, usageCode},
		{[]string{"extra"}, usageCode},
		{[]string{"--config", "/nowhere.toml"}, 1},
	} {
		if got := Main(tt.args); got != tt.want {
			t.Errorf("%v gives exit code %d, want %d", tt.args, got, tt.want)
		}
	}
}
