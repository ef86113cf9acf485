// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

func (r *rig) start(id string) error {
	_, err := r.client.StartContainer(r.t.Context(), &criapi.StartContainerRequest{ContainerId: id})
	return err
}

// A start that waits while another fails finds a container that has ended; were it to run it, the
// failure would be told of a container that runs.
func TestStartAfterOneThatFails(t *testing.T) {
	r := newRig(t)
	r.must(r.pod("p", nil), r.container("p", "c", nil))
	entered, open := make(chan struct{}, 2), make(chan struct{})
	r.fail.Store("task", func() error {
		entered <- struct{}{}
		<-open
		return errAction
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.start("c") }()
	<-entered
	go func() { second <- r.start("c") }()
	close(open)
	if err := <-first; status.Code(err) != codes.Unknown {
		t.Errorf("the first start: %v", err)
	}
	if err := <-second; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the second start: %v", err)
	}
	if len(entered) > 0 {
		t.Error("it was started twice")
	}
	answer, err := r.client.ContainerStatus(t.Context(), &criapi.ContainerStatusRequest{ContainerId: "c"})
	r.must(err)
	if s := answer.GetStatus(); s.GetState() != criapi.ContainerState_CONTAINER_EXITED || s.GetReason() != startError {
		t.Errorf("afterwards it is %s, %s", s.GetState(), s.GetReason())
	}
}

// A start that has waited while the pod went down starts nothing.
func TestStartInAPodThatWentDown(t *testing.T) {
	r := newRig(t)
	r.must(r.pod("p", nil), r.container("p", "c", nil))
	r.fail.Store("task", func() error { t.Error("it is started"); return nil })
	done := make(chan error, 1)
	r.must(r.engine.Hold(t.Context(), steps.Container, "c", func(context.Context, *engine.View) error {
		go func() { done <- r.start("c") }()
		return r.down(steps.Sandbox, steps.Destroy, "p")
	}))
	if err := <-done; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the answer: %v", err)
	}
}

// A pod that goes down while a container in it is started may have missed it.
func TestStartWhileThePodGoesDown(t *testing.T) {
	r := newRig(t)
	r.services.Runtime = runtime.NewManager(runtime.Config{})
	r.must(r.pod("p", nil), r.container("p", "c", nil))
	r.fail.Store("task", func() error { return r.down(steps.Sandbox, steps.Destroy, "p") })
	if err := r.start("c"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the answer: %v", err)
	}
	if c, err := r.findContainer("c"); err != nil || c.Station == steps.Running {
		t.Errorf("in a pod that is down it stands at %s (%v)", c.Station, err)
	}
}
