// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps/world"
)

type fakeEngine struct{ limit int }

func (f *fakeEngine) Flows() []engine.FlowStatus {
	return []engine.FlowStatus{
		{Workflow: "sandbox", Flow: "create", Limit: f.limit, InFlight: 2, Peak: 7, Refused: 3, Stuck: 1, Steps: [][]string{{"files", "namespaces"}, {"network"}}},
		{Workflow: "sandbox", Flow: "destroy"},
		{Workflow: "container", Flow: "create"},
	}
}

func (f *fakeEngine) SetLimit(workflow, flow string, limit int) error {
	if workflow != "sandbox" || flow != "create" {
		return engine.ErrUnknownFlow
	}
	f.limit = limit
	return nil
}

func (*fakeEngine) List(workflow string) []*engine.View {
	if workflow != "sandbox" {
		return nil
	}
	return []*engine.View{
		{Workflow: workflow, ID: "aa11", Name: "default_web_u1_0", Phase: engine.Standing},
		{Workflow: workflow, ID: "bb22", Name: "kube-system_dns_u2_1", Phase: engine.Stuck, Station: "ready", Error: "no", Attempts: 3, Since: t0, Changed: t0.Add(time.Second), Retry: t0.Add(time.Minute)},
		{Workflow: workflow, ID: "cc33", Phase: engine.Standing, Damaged: true, Error: "torn"},
	}
}

func (*fakeEngine) Sweep(_ context.Context, dry bool) ([]engine.Found, error) {
	f := engine.Found{Kind: "mount", Name: "/run/x"}
	if !dry {
		f.Error = "busy"
	}
	return []engine.Found{f}, nil
}

const id64 = "4f2a1b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8"

type fakeNode struct{}

func (fakeNode) Things(context.Context) ([]world.Thing, error) {
	return []world.Thing{
		{Kind: "cgroups", Name: "/c/" + id64, ID: id64, Record: "container"},
		{Kind: "mounts", Name: "/run/x"},
		{Kind: "mounts", Name: "/run/" + id64, ID: id64, Record: "sandbox", Behind: true},
	}, nil
}

func (fakeNode) Conditions(context.Context) ([]*runtime.RuntimeCondition, error) {
	return nil, errors.New("still starting")
}

func (fakeNode) Unwell(context.Context) map[string]string {
	return map[string]string{"aa11": "its shim is gone"}
}

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type fakeHistory map[string][]engine.Entry

func (f fakeHistory) IDs() []string { return []string{"dd44", "dd45", "c111", "aa22", "aa11"} }

func (f fakeHistory) Of(id string) ([]engine.Entry, bool) {
	e, ok := f[id]
	return e, ok
}

// entry of "workflow.flow" or "workflow.flow.action", started at ms milliseconds.
func entry(what, id, name string, ms int) engine.Entry {
	parts := append(strings.Split(what, "."), "")
	return engine.Entry{
		Span:  engine.Span{Workflow: parts[0], Flow: parts[1], ID: id, Name: name, Action: parts[2]},
		Start: t0.Add(time.Duration(ms) * time.Millisecond), Duration: time.Millisecond, Outcome: "ok",
	}
}

var history = fakeHistory{
	"aa11": {
		entry("sandbox.create.network", "aa11", "default_web_u1_0", 2),
		entry("sandbox.create.files", "aa11", "default_web_u1_0", 0),
		entry("sandbox.create", "aa11", "default_web_u1_0", 0),
		entry("sandbox.destroy", "aa11", "default_web_u1_0", 50),
		entry("sandbox.destroy.network", "aa11", "default_web_u1_0", 51),
	},
	"aa22": {entry("sandbox.create", "aa22", "other_web_u3_0", 5)},
	"c111": {entry("container.create", "c111", "aa11_main_0", 10)},
	"dd44": {entry("container.create", "dd44", "aa11_side_car_0", 12)},
	"dd45": {entry("image.pull", "dd45", "", 1)},
}

// client serves a Server on a unix socket and connects to it.
func client(t *testing.T, s AdminServer) AdminClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	RegisterAdminServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return NewAdminClient(conn)
}

func newClient(t *testing.T) AdminClient {
	t.Helper()
	return client(t, NewServer(&fakeEngine{limit: 100}, history, fakeNode{}, About{Version: "v9", Root: "/r", State: "/s", Started: t0}))
}

func TestFlows(t *testing.T) {
	r, err := newClient(t).Flows(t.Context(), &FlowsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f := r.GetFlows()[0]
	if f.GetLimit() != 100 || f.GetInFlight() != 2 || f.GetPeak() != 7 || f.GetRefused() != 3 || f.GetStuck() != 1 || len(f.GetSteps()) != 2 {
		t.Errorf("flow is %v", f)
	}
	if len(r.GetStuck()) != 2 {
		t.Fatalf("stuck is %v", r.GetStuck())
	}
	s := r.GetStuck()[0]
	if s.GetName() != "kube-system/dns" || s.GetAttempts() != 3 || s.GetStation() != "ready" || !s.GetRetry().AsTime().Equal(t0.Add(time.Minute)) {
		t.Errorf("stuck is %v", s)
	}
	if d := r.GetStuck()[1]; !d.GetDamaged() || d.GetRetry() != nil {
		t.Errorf("damaged is %v", d)
	}
}

func TestSetLimit(t *testing.T) {
	c := newClient(t)
	for _, tt := range []struct {
		flow  string
		limit int32
		want  codes.Code
	}{{"create", 50, codes.OK}, {"create", 0, codes.OK}, {"create", -1, codes.InvalidArgument}, {"jump", 1, codes.NotFound}} {
		_, err := c.SetLimit(t.Context(), &SetLimitRequest{Workflow: "sandbox", Flow: tt.flow, Limit: tt.limit})
		if got := status.Code(err); got != tt.want {
			t.Errorf("limit %s to %d: %v, want %v", tt.flow, tt.limit, got, tt.want)
		}
	}
	r, err := c.SetLimit(t.Context(), &SetLimitRequest{Workflow: "sandbox", Flow: "create", Limit: 9})
	if err != nil || r.GetBefore() != 0 {
		t.Errorf("limit before is %v, %v", r, err)
	}
}

func TestTimeline(t *testing.T) {
	c := newClient(t)
	for _, tt := range []struct {
		what string
		want []string
		code codes.Code
	}{
		{"aa11", []string{"aa11", "c111", "dd44"}, codes.OK},
		{"aa1", []string{"aa11", "c111", "dd44"}, codes.OK},
		{"web", []string{"aa22"}, codes.OK},
		{"default/web", []string{"aa11", "c111", "dd44"}, codes.OK},
		{"c1", []string{"c111"}, codes.OK},
		{"dd45", []string{"dd45"}, codes.OK},
		{"dd", nil, codes.InvalidArgument},
		{"zz", nil, codes.NotFound},
		{"", nil, codes.InvalidArgument},
	} {
		r, err := c.Timeline(t.Context(), &TimelineRequest{Subject: tt.what})
		if status.Code(err) != tt.code {
			t.Errorf("timeline of %q: %v, want %v", tt.what, err, tt.code)
		}
		var got []string
		for _, s := range r.GetSubjects() {
			got = append(got, s.GetId())
		}
		slices.Sort(got[min(1, len(got)):])
		if !slices.Equal(got, tt.want) {
			t.Errorf("timeline of %q gives %v, want %v", tt.what, got, tt.want)
		}
	}
}

func TestTimelineSortsActionsIntoFlows(t *testing.T) {
	r, err := newClient(t).Timeline(t.Context(), &TimelineRequest{Subject: "aa11"})
	if err != nil {
		t.Fatal(err)
	}
	pod := r.GetSubjects()[0]
	var got []string
	for _, f := range pod.GetFlows() {
		got = append(got, f.GetFlow()+":")
		for _, a := range f.GetActions() {
			got = append(got, a.GetAction())
		}
	}
	want := []string{"create:", "files", "network", "destroy:", "network"}
	if !slices.Equal(got, want) {
		t.Errorf("flows are %v, want %v", got, want)
	}
	if pod.GetName() != "default/web" {
		t.Errorf("name is %s", pod.GetName())
	}
	for _, c := range r.GetSubjects()[1:] {
		if c.GetPod() != "aa11" {
			t.Errorf("container %v has pod %q", c.GetId(), c.GetPod())
		}
	}
}

func TestTimelinesSweepInfo(t *testing.T) {
	c := newClient(t)
	l, err := c.Timelines(t.Context(), &TimelinesRequest{})
	if err != nil || len(l.GetSubjects()) != 5 || l.GetSubjects()[0].GetName() != "side_car" {
		t.Errorf("timelines: %v, %v", l, err)
	}
	dry, err := c.Sweep(t.Context(), &SweepRequest{DryRun: true})
	if err != nil || len(dry.GetFound()) != 2 || dry.GetFound()[0].GetError() != "" || dry.GetFound()[0].GetUnswept() {
		t.Errorf("dry sweep: %v, %v", dry, err)
	}
	if f := dry.GetFound()[1]; f.GetName() != "/run/"+id64 || !f.GetUnswept() {
		t.Errorf("what the actions do not sweep: %v", f)
	}
	wet, err := c.Sweep(t.Context(), &SweepRequest{})
	if err != nil || len(wet.GetFound()) != 2 || wet.GetFound()[0].GetError() != "busy" || !wet.GetFound()[1].GetUnswept() {
		t.Errorf("sweep: %v, %v", wet, err)
	}
	i, err := c.Info(t.Context(), &InfoRequest{})
	if err != nil || i.GetVersion() != "v9" || i.GetRoot() != "/r" || i.GetState() != "/s" || !i.GetStarted().AsTime().Equal(t0) {
		t.Errorf("info: %v, %v", i, err)
	}
}

func TestDoctor(t *testing.T) {
	c := newClient(t)
	r, err := c.Doctor(t.Context(), &DoctorRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if k := r.GetConditions(); len(k) != 1 || k[0].GetReady() || k[0].GetMessage() != "still starting" {
		t.Errorf("conditions: %v", k)
	}
	if s := r.GetStuck(); len(s) != 2 || !s[0].GetSince().AsTime().Equal(t0) {
		t.Errorf("stuck: %v", s)
	}
	if u := r.GetUnwell(); len(u) != 1 || u[0].GetId() != "aa11" || u[0].GetName() != "default/web" || u[0].GetWhy() != "its shim is gone" {
		t.Errorf("unwell: %v", u)
	}
	if k := r.GetKinds(); len(k) != 2 || k[0].GetTotal() != 1 || k[0].GetNobodys() != 0 || k[1].GetNobodys() != 2 {
		t.Errorf("kinds: %v", k)
	}
	if l := r.GetThings(); len(l) != 2 || !l[0].GetNobodys() || l[1].GetRecord() != "sandbox" {
		t.Errorf("things: %v", l)
	}
	if r, err = c.Doctor(t.Context(), &DoctorRequest{All: true}); err != nil || len(r.GetThings()) != 3 {
		t.Errorf("all: %v, %v", r.GetThings(), err)
	}
}
