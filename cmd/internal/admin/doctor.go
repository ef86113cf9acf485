// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/world"
)

// Node is what the API asks of the node.
type Node interface {
	// Things lists what pods and containers have, or have left, on the node.
	Things(ctx context.Context) ([]world.Thing, error)
	// Conditions are what kubelet is told of the daemon's readiness.
	Conditions(ctx context.Context) ([]*runtime.RuntimeCondition, error)
	// Unwell gives what is wrong with pods that stand, by their IDs.
	Unwell(ctx context.Context) map[string]string
}

// Doctor looks for what is not as it should be.
func (s *Server) Doctor(ctx context.Context, r *DoctorRequest) (*DoctorResponse, error) {
	out := &DoctorResponse{Stuck: s.stuck()}
	conditions, err := s.node.Conditions(ctx)
	if err != nil {
		conditions = []*runtime.RuntimeCondition{{Type: runtime.RuntimeReady, Reason: "NotServing", Message: err.Error()}}
	}
	for _, c := range conditions {
		out.Conditions = append(out.Conditions, &Condition{
			Type: c.GetType(), Ready: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage(),
		})
	}
	unwell := s.node.Unwell(ctx)
	for _, v := range s.engine.List(workflowSandbox) {
		if why := unwell[v.ID]; why != "" {
			name, _ := Describe(v.Workflow, v.Name)
			out.Unwell = append(out.Unwell, &Unwell{Workflow: v.Workflow, Id: v.ID, Name: name, Why: why})
		}
	}
	things, err := s.node.Things(ctx)
	if ctx.Err() != nil {
		return nil, failure(ctx.Err())
	}
	if err != nil {
		out.Incomplete = err.Error()
	}
	var kind *Kind // things are sorted by kind
	for _, t := range things {
		if kind.GetName() != t.Kind {
			kind = &Kind{Name: t.Kind}
			out.Kinds = append(out.Kinds, kind)
		}
		kind.Total++
		if t.Nobodys() {
			kind.Nobodys++
		}
		if t.Nobodys() || r.GetAll() {
			out.Things = append(out.Things, &Thing{
				Kind: t.Kind, Name: t.Name, Id: t.ID, Record: t.Record, Nobodys: t.Nobodys(),
			})
		}
	}
	return out, nil
}
