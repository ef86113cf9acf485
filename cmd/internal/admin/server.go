// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admin is the daemon's own small gRPC API for its operator: flows and
// their limits, timelines, sweeping. It is served on a unix socket that only
// root may open, and used by cmd/sandflow.
package admin

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps/world"
)

// Engine is what the API asks of the engine.
type Engine interface {
	Flows() []engine.FlowStatus
	SetLimit(workflow, flow string, limit int) error
	List(workflow string) []*engine.View
	Sweep(ctx context.Context, dryRun bool) ([]engine.Found, error)
}

// History is what the API asks of the timeline.
type History interface {
	IDs() []string
	Of(id string) ([]engine.Entry, bool)
}

// About says which daemon answers.
type About struct {
	Version, Root, State, ConfigFile string
	Started                          time.Time
}

// Server answers the API.
type Server struct {
	UnimplementedAdminServer

	engine  Engine
	history History
	node    Node
	about   About
}

// NewServer returns a server.
func NewServer(e Engine, h History, n Node, a About) *Server {
	return &Server{engine: e, history: h, node: n, about: a}
}

// Info says which daemon answers.
func (s *Server) Info(context.Context, *InfoRequest) (*InfoResponse, error) {
	return &InfoResponse{
		Version: s.about.Version, GoVersion: runtime.Version(), Pid: clamp(os.Getpid()),
		Started: timestamppb.New(s.about.Started), Root: s.about.Root, State: s.about.State,
		ConfigFile: s.about.ConfigFile,
	}, nil
}

// Flows gives the flows with their counters, and the subjects that are stuck.
func (s *Server) Flows(context.Context, *FlowsRequest) (*FlowsResponse, error) {
	r := &FlowsResponse{Stuck: s.stuck()}
	for _, f := range s.engine.Flows() {
		r.Flows = append(r.Flows, flowOf(f))
	}
	return r, nil
}

// stuck lists the subjects that are stuck, or cannot be read.
func (s *Server) stuck() []*Stuck {
	var out []*Stuck
	var workflows []string
	for _, f := range s.engine.Flows() {
		if !slices.Contains(workflows, f.Workflow) {
			workflows = append(workflows, f.Workflow)
		}
	}
	for _, w := range workflows {
		for _, v := range s.engine.List(w) {
			if v.Phase == engine.Stuck || v.Damaged {
				out = append(out, stuckOf(v))
			}
		}
	}
	return out
}

func flowOf(f engine.FlowStatus) *Flow {
	out := &Flow{
		Workflow: f.Workflow, Name: f.Flow, Limit: clamp(f.Limit), Queue: clamp(f.Queue),
		InFlight: clamp(f.InFlight), Waiting: clamp(f.Waiting), Peak: clamp(f.Peak),
		Refused: uint32(max(0, min(int64(f.Refused), math.MaxUint32))), Stuck: clamp(f.Stuck), Failover: f.Failover,
	}
	for _, actions := range f.Steps {
		out.Steps = append(out.Steps, &Step{Actions: actions})
	}
	return out
}

func stuckOf(v *engine.View) *Stuck {
	name, _ := Describe(v.Workflow, v.Name)
	out := &Stuck{
		Workflow: v.Workflow, Id: v.ID, Name: name, Station: v.Station, Error: v.Error,
		Attempts: clamp(v.Attempts), Damaged: v.Damaged,
	}
	since := v.Since
	if since.IsZero() { // damaged
		since = v.Changed
	}
	// As far away by the clock as it is in truth, also when the clock has been set since.
	now := time.Now()
	out.Since = timestamppb.New(now.Add(-now.Sub(since)))
	if !v.Retry.IsZero() {
		out.Retry = timestamppb.New(now.Add(v.Retry.Sub(now)))
	}
	return out
}

// SetLimit changes the limit of a flow.
func (s *Server) SetLimit(_ context.Context, r *SetLimitRequest) (*SetLimitResponse, error) {
	if r.GetLimit() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "limit %d is negative; 0 is unlimited", r.GetLimit())
	}
	before := 0
	for _, f := range s.engine.Flows() {
		if f.Workflow == r.GetWorkflow() && f.Flow == r.GetFlow() {
			before = f.Limit
		}
	}
	if err := s.engine.SetLimit(r.GetWorkflow(), r.GetFlow(), int(r.GetLimit())); err != nil {
		return nil, failure(err)
	}
	return &SetLimitResponse{Before: clamp(before)}, nil
}

// Sweep finds, and unless it is a dry run removes, what no record knows. What the actions do
// not sweep is told in both cases.
func (s *Server) Sweep(ctx context.Context, r *SweepRequest) (*SweepResponse, error) {
	found, err := s.engine.Sweep(ctx, r.GetDryRun())
	if err != nil {
		return nil, failure(err)
	}
	out := &SweepResponse{}
	for _, f := range found {
		out.Found = append(out.Found, &Found{Kind: f.Kind, Name: f.Name, Error: f.Error})
	}
	things, err := s.node.Things(ctx)
	if err != nil {
		return nil, failure(err)
	}
	for _, t := range world.Nobodys(things) {
		if !covered(t, found) {
			out.Found = append(out.Found, &Found{Kind: t.Kind, Name: t.Name, Unswept: true})
		}
	}
	return out, nil
}

// covered says that sweeping removes a thing: it goes with what bears the same ID.
func covered(t world.Thing, found []engine.Found) bool {
	return slices.ContainsFunc(found, func(f engine.Found) bool {
		return f.Name == t.Name || t.ID != "" && strings.Contains(f.Name, t.ID)
	})
}

// failure is the one place where the engine's errors become codes.
func failure(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrUnknownFlow):
		code = codes.NotFound
	case errors.Is(err, engine.ErrClosed):
		code = codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}

func clamp(n int) int32 { return int32(max(math.MinInt32, min(n, math.MaxInt32))) }

func spanOf(e engine.Entry) *Span {
	return &Span{
		Start: timestamppb.New(e.Start), Duration: durationpb.New(e.Duration), Outcome: e.Outcome, Error: e.Error,
	}
}
