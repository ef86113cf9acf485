// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cmd/internal/logging"
	"github.com/sandflow-cri/sandflow/engine"
)

func TestLockRefusesASecond(t *testing.T) {
	dir := t.TempDir()
	first, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); !errors.Is(err, errLocked) {
		t.Errorf("second lock: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "x.sock")
	l, err := listenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode is %v, %v", st.Mode(), err)
	}
	if _, err := listenUnix(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another process serves it") {
		t.Errorf("a served socket: %v", err)
	}
	// What a killed process leaves.
	ul, ok := l.(*net.UnixListener)
	if !ok {
		t.Fatalf("listener is a %T", l)
	}
	ul.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = listenUnix(t.Context(), path)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	_ = l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(t.Context(), path); err == nil {
		t.Error("a file was replaced by a socket")
	}
}

func TestFindShim(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "shim-of-test")
	if err := os.WriteFile(good, nil, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for _, tt := range []struct{ shim, want string }{
		{good, good}, {"shim-of-test", good}, {"no-such-shim", ""}, {filepath.Join(dir, "none"), ""}, {dir, ""},
	} {
		c := config.Default()
		c.Runtime.Shim = tt.shim
		got, err := findShim(c)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("shim %s is found as %q, %v; want %q", tt.shim, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "runtime.shim: ") {
			t.Errorf("error does not name the key: %v", err)
		}
	}
}

type fakeCounters struct{}

func (fakeCounters) Flows() []engine.FlowStatus {
	return []engine.FlowStatus{{Workflow: "sandbox", Flow: "create", Limit: 9, InFlight: 2, Peak: 5, Refused: 3}}
}

func (fakeCounters) List(string) []*engine.View {
	return []*engine.View{
		{ID: "a", Phase: engine.Standing},
		{ID: "b", Phase: engine.Stuck, Since: time.Unix(1000, 0)},
		{ID: "c", Phase: engine.Stuck, Since: time.Unix(1030, 0)},
	}
}

func TestMetrics(t *testing.T) {
	m := newMetrics()
	m.now = func() time.Time { return time.Unix(1060, 0) }
	m.watch(fakeCounters{})
	for _, s := range []engine.Span{
		{Workflow: "sandbox", Flow: "create"},
		{Workflow: "sandbox", Flow: "create", Action: "network"},
		{Workflow: "sandbox", Flow: "create", Action: "network", Down: true, Rollback: true},
		{Workflow: "sandbox", Flow: "create", Action: "shim", Skipped: true},
	} {
		var fail error
		if s.Action == "network" && !s.Down {
			fail = errors.New("no")
		}
		if err := m.Around(t.Context(), s, func(context.Context) error { return fail }); !errors.Is(err, fail) {
			t.Errorf("error is %v", err)
		}
	}
	srv := httptest.NewServer(m.handler())
	defer srv.Close()
	body := get(t, srv.URL+"/metrics")
	for _, want := range []string{
		"sandflow_flow_duration_seconds_count{flow=\"create\",outcome=\"ok\",workflow=\"sandbox\"} 1",
		"sandflow_action_duration_seconds_count{action=\"network\",direction=\"do\",outcome=\"failed\",workflow=\"sandbox\"} 1",
		"sandflow_action_duration_seconds_count{action=\"network\",direction=\"rollback\",outcome=\"ok\",workflow=\"sandbox\"} 1",
		"sandflow_flow_in_flight{flow=\"create\",workflow=\"sandbox\"} 2",
		"sandflow_flow_refused_total{flow=\"create\",workflow=\"sandbox\"} 3",
		"sandflow_subjects{phase=\"stuck\",workflow=\"sandbox\"} 2",
		"sandflow_stuck_oldest_seconds{workflow=\"sandbox\"} 60",
		"go_goroutines",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(body, "action=\"shim\"") {
		t.Error("a skipped action is measured")
	}
	if !strings.Contains(get(t, srv.URL+"/debug/pprof/"), "goroutine") {
		t.Error("no pprof")
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestLogsCarryTheSubject(t *testing.T) {
	var b bytes.Buffer
	l, err := logging.New(&b, "trace", logging.JSON)
	if err != nil {
		t.Fatal(err)
	}
	o := logs{l}
	// The logger of an RPC knows the sandbox too; it must not be said twice.
	ctx := klog.NewContext(t.Context(), l.WithValues("sandbox", "abc"))
	flow := engine.Span{Workflow: "container", Flow: "create", ID: "def", Name: "abc_main_0"}
	action := flow
	action.Action = "network"
	err = o.Around(ctx, flow, func(ctx context.Context) error {
		return o.Around(ctx, action, func(ctx context.Context) error {
			klog.FromContext(ctx).Info("inside")
			return errors.New("no plugin")
		})
	})
	if err == nil {
		t.Fatal("the error is lost")
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("log is %s", b.String())
	}
	for i, want := range []string{"\"msg\":\"inside\"", "\"msg\":\"Action failed\"", "\"msg\":\"Flow failed\""} {
		if !strings.Contains(lines[i], want) || strings.Count(lines[i], "\"sandbox\":\"abc\"") != 1 || !strings.Contains(lines[i], "\"container\":\"def\"") || strings.Count(lines[i], "\"flow\":\"create\"") != 1 {
			t.Errorf("line %d is %s, want %s, the sandbox and the flow once", i, lines[i], want)
		}
	}
	if !strings.Contains(lines[0], "\"action\":\"network\"") {
		t.Errorf("no action in %s", lines[0])
	}
}

func TestTasks(t *testing.T) {
	var ts tasks
	ts.init(t.Context())
	boom := errors.New("boom")
	ts.run("bad", func(context.Context) error { return boom })
	ts.run("good", func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if err := ts.wait(t.Context()); !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "bad: ") {
		t.Errorf("wait gives %v", err)
	}
	if err := ts.stop(); err != nil {
		t.Errorf("stop gives %v", err)
	}
}
