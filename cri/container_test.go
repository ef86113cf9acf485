// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

func TestStateOfContainer(t *testing.T) {
	exit := &steps.Exit{}
	for _, c := range []struct {
		name    string
		station string
		phase   engine.Phase
		exit    *steps.Exit
		want    runtimeapi.ContainerState
	}{
		{"created", steps.Created, engine.Standing, nil, runtimeapi.ContainerState_CONTAINER_CREATED},
		{"starting", steps.Created, engine.Climbing, nil, runtimeapi.ContainerState_CONTAINER_CREATED},
		{"running", steps.Running, engine.Standing, nil, runtimeapi.ContainerState_CONTAINER_RUNNING},
		{"ended, task still there", steps.Running, engine.Descending, exit, runtimeapi.ContainerState_CONTAINER_EXITED},
		{"ended", steps.Created, engine.Standing, exit, runtimeapi.ContainerState_CONTAINER_EXITED},
		{"stuck on the way down", steps.Created, engine.Stuck, nil, runtimeapi.ContainerState_CONTAINER_UNKNOWN},
	} {
		got := container{View: &engine.View{Station: c.station, Phase: c.phase}, exit: c.exit}.state()
		if got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if got := (container{View: &engine.View{Damaged: true}}).state(); got != runtimeapi.ContainerState_CONTAINER_UNKNOWN {
		t.Errorf("damaged: %v, want UNKNOWN", got)
	}
}

// A container on its way down may still have its process: StopContainer answered
// success for one whose shim was frozen.
func TestAtRest(t *testing.T) {
	for _, c := range []struct {
		station string
		phase   engine.Phase
		exit    *steps.Exit
		want    bool
	}{
		{steps.Created, engine.Standing, nil, true},
		{steps.Running, engine.Standing, &steps.Exit{}, true},
		{steps.Running, engine.Standing, nil, false},
		{steps.Created, engine.Descending, nil, false},
		{steps.Created, engine.Stuck, nil, false},
		{steps.Created, engine.Climbing, nil, false},
	} {
		if got := (container{View: &engine.View{Station: c.station, Phase: c.phase}, exit: c.exit}).atRest(); got != c.want {
			t.Errorf("%s, %s, exit %v: at rest %v, want %v", c.station, c.phase, c.exit, got, c.want)
		}
	}
}

func TestReasonOfExit(t *testing.T) {
	for _, c := range []struct {
		exit runtime.Exit
		want string
	}{
		{runtime.Exit{}, "Completed"}, {runtime.Exit{Code: 1}, "Error"}, {runtime.Exit{Code: 137, OOMKilled: true}, "OOMKilled"},
	} {
		if got := exitOf(steps.Task{}, c.exit); got.Reason != c.want || got.Code != int32(c.exit.Code) {
			t.Errorf("exitOf(%+v) = %+v; want reason %s", c.exit, got, c.want)
		}
	}
}

// Case 18: the signal's name in the status, and what is sent.
func TestCase18StopSignalNames(t *testing.T) {
	for _, c := range []struct {
		stored string
		status runtimeapi.Signal
		sent   unix.Signal
	}{
		{"SIGTERM", runtimeapi.Signal_SIGNAL_SIGTERM, unix.SIGTERM},
		{"SIGRTMIN+3", runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3, unix.Signal(37)},
		{"SIGRTMAX-1", runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS1, unix.Signal(63)},
		{"QUIT", runtimeapi.Signal_SIGNAL_SIGQUIT, unix.SIGQUIT},
	} {
		got := container{View: &engine.View{}, request: steps.Ctr{StopSignal: c.stored}}.status().GetStopSignal()
		if got != c.status {
			t.Errorf("%s is reported as %v, want %v", c.stored, got, c.status)
		}
		if sent := stopSignal(c.stored); sent != c.sent {
			t.Errorf("%s sends %d, want %d", c.stored, sent, c.sent)
		}
	}
}

// Case 16: times of a container that never ran.
func TestCase16TimesOfAFailedStart(t *testing.T) {
	finished := time.Unix(100, 0)
	c := container{View: &engine.View{Station: steps.Created}, exit: &steps.Exit{Code: startErrorCode, Reason: startError, Finished: finished}}
	status := c.status()
	if status.GetStartedAt() != 0 || status.GetFinishedAt() != finished.UnixNano() || status.GetExitCode() != 128 {
		t.Errorf("status %+v: want no start, the end at 100 s, code 128", status)
	}
}

func TestFilters(t *testing.T) {
	c := &runtimeapi.Container{Id: "abcdef", PodSandboxId: "p1", State: runtimeapi.ContainerState_CONTAINER_RUNNING, Labels: map[string]string{"a": "1", "b": "2"}}
	running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	exited := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}
	for _, f := range []struct {
		filter *runtimeapi.ContainerFilter
		want   bool
	}{
		{nil, true},
		{&runtimeapi.ContainerFilter{}, true},
		{&runtimeapi.ContainerFilter{Id: "abc", PodSandboxId: "p1", State: running, LabelSelector: map[string]string{"a": "1"}}, true},
		{&runtimeapi.ContainerFilter{Id: "bcd"}, false},
		{&runtimeapi.ContainerFilter{PodSandboxId: "p2"}, false},
		{&runtimeapi.ContainerFilter{State: exited}, false},
		{&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"a": "2"}}, false},
		{&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"c": ""}}, false},
	} {
		if got := matchContainer(c, f.filter); got != f.want {
			t.Errorf("filter %v matches: %v, want %v", f.filter, got, f.want)
		}
	}
}
