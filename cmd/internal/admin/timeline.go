// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandflow-cri/sandflow/engine"
)

const (
	workflowSandbox   = "sandbox"
	workflowContainer = "container"
)

// Describe makes of the name that the CRI server reserves in the engine what an
// operator knows the subject by, and for a container the ID of its pod. Pods
// are reserved as namespace_name_uid_attempt, containers as pod-id_name_attempt;
// none of the parts of Kubernetes holds an underscore.
func Describe(workflow, reserved string) (name, pod string) {
	parts := strings.Split(reserved, "_")
	switch {
	case workflow == workflowSandbox && len(parts) >= 4:
		return parts[0] + "/" + parts[1], ""
	case workflow == workflowContainer && len(parts) >= 3:
		return strings.Join(parts[1:len(parts)-1], "_"), parts[0]
	default:
		return reserved, ""
	}
}

// Timelines lists what is remembered, newest first.
func (s *Server) Timelines(context.Context, *TimelinesRequest) (*TimelinesResponse, error) {
	return &TimelinesResponse{Subjects: s.subjects()}, nil
}

// Timeline gives the life of one pod with its containers, or of one container.
func (s *Server) Timeline(_ context.Context, r *TimelineRequest) (*TimelineResponse, error) {
	if r.GetSubject() == "" {
		return nil, status.Error(codes.InvalidArgument, "no pod or container is named")
	}
	all := s.subjects()
	found, err := find(all, r.GetSubject())
	if err != nil {
		return nil, err
	}
	out := &TimelineResponse{Subjects: []*Subject{found}}
	for _, c := range slices.Backward(all) { // oldest first, as they were made
		if c.GetPod() == found.GetId() && found.GetWorkflow() == workflowSandbox {
			out.Subjects = append(out.Subjects, c)
		}
	}
	return out, nil
}

func (s *Server) subjects() []*Subject {
	var out []*Subject
	for _, id := range s.history.IDs() {
		if entries, ok := s.history.Of(id); ok && len(entries) > 0 {
			out = append(out, subjectOf(id, entries))
		}
	}
	return out
}

// find looks for an ID, a beginning of one, or the newest of that name.
func find(all []*Subject, what string) (*Subject, error) {
	var begins []*Subject
	for _, s := range all {
		if s.GetId() == what {
			return s, nil
		}
		if strings.HasPrefix(s.GetId(), what) {
			begins = append(begins, s)
		}
	}
	for _, s := range all {
		_, bare, _ := strings.Cut(s.GetName(), "/")
		if s.GetWorkflow() == workflowSandbox && (s.GetName() == what || bare == what) {
			return s, nil
		}
	}
	switch len(begins) {
	case 0:
		return nil, status.Errorf(codes.NotFound, "no pod or container %q is remembered", what)
	case 1:
		return begins[0], nil
	default:
		return nil, status.Errorf(codes.InvalidArgument, "%q is the beginning of %d IDs, among them %s and %s",
			what, len(begins), begins[0].GetId(), begins[1].GetId())
	}
}

// subjectOf sorts the entries of a subject into runs of flows. Flows of one
// subject never run at the same time, so an action belongs to the flow that
// started last before it.
func subjectOf(id string, entries []engine.Entry) *Subject {
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b engine.Entry) int {
		if c := a.Start.Compare(b.Start); c != 0 {
			return c
		}
		return depth(a) - depth(b)
	})
	out := &Subject{Workflow: entries[0].Workflow, Id: id}
	for _, e := range entries {
		if out.Name == "" && e.Name != "" {
			out.Name, out.Pod = Describe(e.Workflow, e.Name)
		}
		n := len(out.Flows)
		if e.Action == "" {
			out.Flows = append(out.Flows, &FlowRun{Flow: e.Flow, Span: spanOf(e)})
			continue
		}
		if n == 0 { // its flow has been forgotten
			out.Flows = append(out.Flows, &FlowRun{Flow: e.Flow, Span: spanOf(e)})
			n++
		}
		run := out.Flows[n-1]
		run.Actions = append(run.Actions, &ActionRun{
			Action: e.Action, Step: clamp(e.Step), Down: e.Down, Rollback: e.Rollback, Span: spanOf(e),
		})
	}
	return out
}

// depth puts a flow before its actions where the clock does not.
func depth(e engine.Entry) int {
	if e.Action == "" {
		return 0
	}
	return 1
}
