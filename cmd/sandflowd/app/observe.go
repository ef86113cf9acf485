// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// Verbosity of what the engine does: flows are worth a line each, actions when
// somebody looks closer.
const (
	verbosityFlow    = 2
	verbosityAction  = 4
	verbositySkipped = 5
)

// logs is the observer that logs, and gives everything below a flow a logger
// that knows the pod, the container and the flow.
type logs struct{ root klog.Logger }

// subjectKey marks a context whose logger has the subject already.
type subjectKey struct{}

// Around implements engine.Observer.
func (o logs) Around(ctx context.Context, s engine.Span, next func(context.Context) error) error {
	l := klog.FromContext(ctx)
	if id, _ := ctx.Value(subjectKey{}).(string); id != s.Flow+" "+s.ID {
		// From the root: the logger of an RPC has the IDs of its request already.
		l = o.root.WithValues(subject(s)...)
		ctx = context.WithValue(ctx, subjectKey{}, s.Flow+" "+s.ID)
	}
	if s.Action != "" {
		l = l.WithValues("action", s.Action)
	}
	start := time.Now()
	err := next(klog.NewContext(ctx, l))
	took := time.Since(start).Round(time.Microsecond)
	switch {
	case s.Action == "":
		logFlow(l, s, took, err)
	case s.Skipped:
		l.V(verbositySkipped).Info("Action does not apply", "step", s.Step)
	case err != nil && s.Down:
		l.Error(err, "Action could not be undone", "step", s.Step, "rollback", s.Rollback, "took", took)
	case err != nil:
		l.V(verbosityFlow).Info("Action failed", "step", s.Step, "took", took, "err", err)
	default:
		l.V(verbosityAction).Info("Action done", "step", s.Step, "down", s.Down, "rollback", s.Rollback, "took", took)
	}
	return err
}

// subject is what the log says of the pod or container; nothing in what runs once per boot.
func subject(s engine.Span) []any {
	var kv []any
	if _, pod := admin.Describe(s.Workflow, s.Name); pod != "" {
		kv = append(kv, steps.Sandbox, pod)
	}
	if s.ID != "" {
		kv = append(kv, s.Workflow, s.ID)
	}
	return append(kv, "flow", s.Flow)
}

func logFlow(l klog.Logger, s engine.Span, took time.Duration, err error) {
	switch {
	case err == nil:
		l.V(verbosityFlow).Info("Flow done", "took", took, "rollback", s.Rollback)
	case outcome(err) == outcomeCancelled, outcome(err) == outcomeRefused:
		l.V(verbosityFlow).Info("Flow ended early", "took", took, "rollback", s.Rollback, "outcome", outcome(err), "err", err)
	default:
		l.Error(err, "Flow failed", "took", took, "rollback", s.Rollback)
	}
}

// Outcomes as metrics have them.
const (
	outcomeOK        = "ok"
	outcomeFailed    = "failed"
	outcomeCancelled = "cancelled"
	outcomeRefused   = "refused"
)

func outcome(err error) string {
	switch {
	case err == nil:
		return outcomeOK
	case errors.Is(err, engine.ErrConcurrentFailed):
		return outcomeRefused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcomeCancelled
	default:
		return outcomeFailed
	}
}
