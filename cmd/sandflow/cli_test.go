// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const podID = "4f2a1b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8"

// daemon is a sandflowd that always says the same.
type daemon struct {
	admin.UnimplementedAdminServer
}

func (daemon) Info(context.Context, *admin.InfoRequest) (*admin.InfoResponse, error) {
	return &admin.InfoResponse{Version: "v1.2.3", GoVersion: "go1.26", Pid: 42, Started: timestamppb.New(t0.Add(-3 * time.Hour)), Root: "/r", State: "/s"}, nil
}

func (daemon) Flows(context.Context, *admin.FlowsRequest) (*admin.FlowsResponse, error) {
	return &admin.FlowsResponse{
		Flows: []*admin.Flow{
			{Workflow: "sandbox", Name: "create", Limit: 100, InFlight: 3, Peak: 12, Refused: 4, Stuck: 1, Failover: true},
			{Workflow: "sandbox", Name: "destroy"},
			{Workflow: "image", Name: "pull", Limit: 10, Queue: 100, Waiting: 2},
		},
		Stuck: []*admin.Stuck{
			{Workflow: "sandbox", Id: podID, Name: "default/web", Station: "ready", Error: "undo network:\n plugin bridge: timeout", Attempts: 3, Since: timestamppb.New(t0.Add(-90 * time.Second)), Retry: timestamppb.New(t0.Add(12 * time.Second))},
			{Workflow: "container", Id: "cc", Damaged: true, Error: "unexpected end", Since: timestamppb.New(t0.Add(-72 * time.Hour))},
		},
	}, nil
}

func (daemon) SetLimit(_ context.Context, r *admin.SetLimitRequest) (*admin.SetLimitResponse, error) {
	if r.GetFlow() != "create" {
		return nil, status.Error(codes.NotFound, "there is no flow sandbox."+r.GetFlow())
	}
	return &admin.SetLimitResponse{Before: 100}, nil
}

func span(ms, took float64, outcome, err string) *admin.Span {
	at := func(f float64) time.Duration { return time.Duration(f * float64(time.Millisecond)) }
	return &admin.Span{Start: timestamppb.New(t0.Add(at(ms))), Duration: durationpb.New(at(took)), Outcome: outcome, Error: err}
}

func (daemon) Timelines(context.Context, *admin.TimelinesRequest) (*admin.TimelinesResponse, error) {
	return &admin.TimelinesResponse{Subjects: []*admin.Subject{
		{Workflow: "container", Id: "c1", Name: "main", Pod: podID, Flows: []*admin.FlowRun{{Flow: "create", Span: span(-2000, 12.5, "ok", "")}}},
		{Workflow: "sandbox", Id: podID, Name: "default/web", Flows: []*admin.FlowRun{{Flow: "create", Span: span(-65000, 40, "failed", "x")}, {Flow: "destroy", Span: span(-62000, 12345, "running", "")}}},
	}}, nil
}

func (daemon) Timeline(_ context.Context, r *admin.TimelineRequest) (*admin.TimelineResponse, error) {
	if r.GetSubject() != "web" {
		return nil, status.Error(codes.NotFound, "no pod or container \""+r.GetSubject()+"\" is remembered")
	}
	return &admin.TimelineResponse{Subjects: []*admin.Subject{
		{Workflow: "sandbox", Id: podID, Name: "default/web", Flows: []*admin.FlowRun{{
			Flow: "create", Span: span(0, 40, "failed", "do network: plugin bridge: no"), Actions: []*admin.ActionRun{
				{Action: "files", Step: 0, Span: span(0.1, 2, "ok", "")},
				{Action: "namespaces", Step: 0, Span: span(0.1, 0.001, "ok", "")},
				{Action: "network", Step: 1, Span: span(2.2, 20, "failed", "plugin bridge:\n no")},
			},
		}, {
			Flow: "create", Span: span(22.2, 17.8, "ok", ""), Actions: []*admin.ActionRun{
				{Action: "network", Step: 0, Down: true, Rollback: true, Span: span(22.2, 16, "ok", "")},
				{Action: "files", Step: 1, Down: true, Rollback: true, Span: span(38.3, 1.7, "ok", "")},
				{Action: "namespaces", Step: 1, Down: true, Rollback: true, Span: span(38.3, 1, "ok", "")},
			},
		}}},
		{Workflow: "container", Id: "c1", Name: "main", Pod: podID, Flows: []*admin.FlowRun{
			{Flow: "create", Span: span(100, 5, "ok", ""), Actions: []*admin.ActionRun{
				{Action: "rootfs", Step: 0, Span: span(100, 4, "ok", "")},
				{Action: "volumes", Step: 1, Span: span(104, 0, "skipped", "")},
			}},
			{Flow: "start", Span: span(200, 0, "running", ""), Actions: []*admin.ActionRun{
				{Action: "task", Step: 0, Span: span(200.5, 7, "running", "")},
			}},
		}},
	}}, nil
}

func (daemon) Sweep(_ context.Context, r *admin.SweepRequest) (*admin.SweepResponse, error) {
	out := &admin.SweepResponse{Found: []*admin.Found{{Kind: "netns", Name: "/run/x/ns/net"}, {Kind: "snapshot", Name: "c9"}}}
	if !r.GetDryRun() {
		out.Found[1].Error = "device is busy"
	}
	out.Found = append(out.Found, &admin.Found{Kind: "firewall rules", Name: "drop", Unswept: true})
	return out, nil
}

func (d daemon) Doctor(ctx context.Context, r *admin.DoctorRequest) (*admin.DoctorResponse, error) {
	flows, err := d.Flows(ctx, nil)
	out := &admin.DoctorResponse{
		Conditions: []*admin.Condition{{Type: "RuntimeReady", Ready: true}, {Type: "NetworkReady", Reason: "NoNetwork", Message: "no\nfile"}},
		Stuck:      flows.GetStuck(),
		Unwell:     []*admin.Unwell{{Workflow: "sandbox", Id: podID, Name: "default/web", Why: "its shim is gone"}},
		Kinds:      []*admin.Kind{{Name: "mounts", Total: 12, Nobodys: 2}, {Name: "shims", Total: 3}},
		Things: []*admin.Thing{
			{Kind: "mounts", Name: "/run/x", Nobodys: true},
			{Kind: "mounts", Name: "/run/y", Id: podID, Record: "sandbox", Nobodys: true},
			{Kind: "mounts", Name: "/run/z", Id: podID, Nobodys: true},
		},
		Incomplete: "nft: no",
	}
	if r.GetAll() {
		out.Things = append(out.Things, &admin.Thing{Kind: "shims", Name: "shim (pid 7)", Id: podID, Record: "sandbox"})
	}
	return out, err
}

func serve(t *testing.T, s admin.AdminServer) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	admin.RegisterAdminServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func runCLI(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	c := newCLI(&o, &e)
	c.now = func() time.Time { return t0 }
	code = c.run(t.Context(), args)
	return code, o.String(), e.String()
}

func TestGolden(t *testing.T) {
	socket := serve(t, daemon{})
	for _, tt := range []struct {
		name, args string
		code       int
	}{
		{"flows", "flows", 0},
		{"flows-set", "flows set sandbox.create --limit 50", 0},
		{"flows-set-unlimited", "flows set sandbox.create --limit 0", 0},
		{"timelines", "timeline", 0},
		{"timeline", "timeline web", 0},
		{"sweep-dry", "sweep --dry-run", exitFound},
		{"sweep", "sweep", exitFailed},
		{"flows-json", "flows -o json", 0},
		{"timeline-json", "timeline web -o json", 0},
		{"sweep-dry-json", "sweep --dry-run --output=json", exitFound},
		{"doctor", "doctor", exitFound},
		{"doctor-all", "doctor --all", exitFound},
		{"doctor-json", "doctor -o json", exitFound},
		{"help", "--help", 0},
		{"unknown-subject", "timeline nobody", exitFailed},
		{"unknown-flow", "flows set sandbox.jump --limit 1", exitFailed},
		{"usage-args", "timeline a b", exitUsage},
		{"usage-flag", "flows --loud", exitUsage},
		{"usage-command", "dance", exitUsage},
		{"usage-output", "flows -o xml", exitUsage},
		{"usage-flow", "flows set create --limit 1", exitUsage},
		{"usage-limit", "flows set sandbox.create --limit -4", exitUsage},
		{"usage-no-limit", "flows set sandbox.create", exitUsage},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := runCLI(t, append(strings.Fields(tt.args), "--admin-socket", socket)...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			golden(t, tt.name, out+errs)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output is\n%s\nwant\n%s", got, want)
	}
}

func TestUnreachable(t *testing.T) {
	code, out, errs := runCLI(t, "flows", "--admin-socket", filepath.Join(t.TempDir(), "none.sock"))
	if code != exitUnreachable || out != "" || !strings.Contains(errs, "is sandflowd running?") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestVersion(t *testing.T) {
	socket := serve(t, daemon{})
	code, out, _ := runCLI(t, "version", "--admin-socket", socket)
	if code != 0 || !strings.Contains(out, "sandflowd  v1.2.3 (go1.26), pid 42, up 3h") || !strings.Contains(out, "(built-in default)") {
		t.Errorf("exit code %d, %s", code, out)
	}
	var v struct{ Client, Daemon map[string]any }
	if _, out, _ = runCLI(t, "version", "-o", "json", "--admin-socket", socket); json.Unmarshal([]byte(out), &v) != nil || v.Daemon["version"] != "v1.2.3" {
		t.Errorf("JSON is %s", out)
	}
	if code, out, _ = runCLI(t, "version", "--client", "--admin-socket", "/nowhere"); code != 0 || !strings.HasPrefix(out, "sandflow ") {
		t.Errorf("exit code %d, %s", code, out)
	}
}

func TestSocketFromTheConfiguration(t *testing.T) {
	socket := serve(t, daemon{})
	t.Setenv(socketEnv, socket)
	if code, _, errs := runCLI(t, "flows"); code != 0 {
		t.Errorf("from the environment: exit code %d: %s", code, errs)
	}
	t.Setenv(socketEnv, "/nowhere")
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[admin]\nsocket = \""+socket+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := runCLI(t, "flows", "--config", file); code != 0 {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	_, def, _ := runCLI(t, "config", "default")
	_, defJSON, _ := runCLI(t, "config", "default", "-o", "json")
	for _, tt := range []struct {
		name, file, text string
		code             int
		want             string
	}{
		{"default", "d.toml", def, 0, "d.toml: good\n"},
		{"default as JSON", "d.json", defJSON, 0, "d.json: good\n"},
		{"unknown key", "k.toml", "\n[cri]\nx = 1\n", exitFound, "k.toml:3: cri.x: unknown key"},
		{"unknown action", "a.toml", "[workflows.sandbox.create]\nsteps = [[\"files\", \"namespaces\"],\n[\"netwrk\"]]\n", exitFound, "a.toml:3: workflows.sandbox.create.steps[1][0]: "},
		{"missing", "", "", exitFailed, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(dir, "missing.toml")
			if tt.file != "" {
				file = filepath.Join(dir, tt.file)
				if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			code, out, errs := runCLI(t, "config", "check", file)
			if code != tt.code || !strings.HasPrefix(strings.TrimPrefix(out, dir+"/"), tt.want) {
				t.Errorf("exit code %d, want %d; output %s%s", code, tt.code, out, errs)
			}
			if tt.code == exitFound {
				var v verdict
				if _, out, _ = runCLI(t, "config", "check", file, "-o", "json"); json.Unmarshal([]byte(out), &v) != nil || v.OK || v.Faults[0].Line != 3 {
					t.Errorf("JSON is %s", out)
				}
			}
		})
	}
}

func TestConfigNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shim, runc, plain := write("shim", "", 0o755), write("runc", "", 0o755), write("plain", "", 0o600)
	write("10.conflist", "{}", 0o600)
	const text = "[runtime]\nshim = %q\n[runtime.handlers.runc]\nbinary = %q\n[cni]\nconf_dir = %q\nbin_dirs = [%q]\n"
	good := write("good.toml", fmt.Sprintf(text, shim, runc, dir, dir), 0o600)
	if code, out, _ := runCLI(t, "config", "check", good); code != 0 || out != good+": good\n" {
		t.Errorf("exit code %d, output %s", code, out)
	}
	none := filepath.Join(dir, "none")
	bad := write("bad.toml", fmt.Sprintf(text, plain, none, none, none), 0o600)
	code, out, _ := runCLI(t, "config", "check", bad)
	for _, want := range []string{":2: runtime.shim: ", ":4: runtime.handlers.runc.binary: ", ":6: cni.conf_dir: ", ":7: cni.bin_dirs: "} {
		if code != 0 || !strings.Contains(out, "warning: "+bad+want) {
			t.Errorf("exit code %d, no warning %s in\n%s", code, want, out)
		}
	}
	var v verdict
	if _, out, _ = runCLI(t, "config", "check", bad, "-o", "json"); json.Unmarshal([]byte(out), &v) != nil || !v.OK || len(v.Warnings) != 4 || v.Warnings[0].Line != 2 {
		t.Errorf("JSON is %s", out)
	}
}

func TestCompletion(t *testing.T) {
	socket := serve(t, daemon{})
	code, out, _ := runCLI(t, "completion", "bash")
	if code != 0 || !strings.Contains(out, "sandflow") {
		t.Errorf("exit code %d", code)
	}
	_, out, _ = runCLI(t, "__complete", "--admin-socket", socket, "flows", "set", "")
	if !strings.Contains(out, "sandbox.create") {
		t.Errorf("flows complete to %s", out)
	}
	_, out, _ = runCLI(t, "__complete", "--admin-socket", socket, "timeline", "")
	if !strings.Contains(out, podID[:13]) {
		t.Errorf("subjects complete to %s", out)
	}
}
