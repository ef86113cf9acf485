// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"testing"
	"time"

	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// Kubelet would take the older one for the one in use if the clock had been set back.
func TestCreatedAfterItsSiblings(t *testing.T) {
	r := newRig(t)
	fast := time.Now().Add(time.Hour) // the clock when the first ones were made
	meta := &criapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u"}
	config := &criapi.PodSandboxConfig{Metadata: meta}
	request := steps.Pod{Config: protoOf(config), Created: fast}
	err := r.engine.Climb(t.Context(), steps.Sandbox, steps.Create, "p1", engine.ClimbOptions{
		Name: podName(meta), Values: []engine.Value{steps.PodRequest.With(request)},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctr := &criapi.ContainerConfig{Metadata: &criapi.ContainerMetadata{Name: "c"}}
	err = r.engine.Climb(t.Context(), steps.Container, steps.Create, "c1", engine.ClimbOptions{
		Name:   containerName("p1", ctr.GetMetadata()),
		Values: []engine.Value{steps.ContainerRequest.With(steps.Ctr{PodID: "p1", Config: protoOf(ctr), Created: fast})},
	})
	if err != nil {
		t.Fatal(err)
	}
	next := pod{View: &engine.View{ID: "p2"}, config: config}
	if at := r.podCreated(meta); !at.After(fast) {
		t.Errorf("the next sandbox is created at %s, the one before at %s", at, fast)
	}
	if at := r.containerCreated(next, "c"); !at.After(fast) {
		t.Errorf("the next container is created at %s, the one before at %s", at, fast)
	}
	other := &criapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "u2"}
	if at := r.podCreated(other); at.After(time.Now()) {
		t.Errorf("a sandbox of another pod is created at %s", at)
	}
	if at := r.containerCreated(next, "d"); at.After(time.Now()) {
		t.Errorf("a container of another name is created at %s", at)
	}
}

// The clock was set back while it ran: the end is told as it was noted, the start not after it.
func TestNoEndBeforeTheStart(t *testing.T) {
	exit := &steps.Exit{Started: time.Unix(200, 0), Finished: time.Unix(100, 0)}
	status := container{View: &engine.View{}, config: &criapi.ContainerConfig{}, exit: exit}.status()
	if status.GetFinishedAt() != exit.Finished.UnixNano() || status.GetStartedAt() != status.GetFinishedAt() {
		t.Errorf("started %d, finished %d", status.GetStartedAt(), status.GetFinishedAt())
	}
}

func TestPodInTheNameOfAContainer(t *testing.T) {
	id := newID()
	if got := podIn(containerName(id, &criapi.ContainerMetadata{Name: "a_b"})); got != id {
		t.Errorf("pod %q, want %q", got, id)
	}
	if got := podIn(""); got != "" {
		t.Errorf("pod %q of a record with no name", got)
	}
}
