// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

type eventStream = criapi.RuntimeService_GetContainerEventsClient

// subscribe returns when the subscription stands.
func (r *rig) subscribe(client criapi.RuntimeServiceClient) eventStream {
	r.t.Helper()
	patient, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	stream, err := client.GetContainerEvents(patient, &criapi.GetEventsRequest{})
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return stream
}

// word is an event in words: what it is of, its type, and the states that it tells.
func word(e *criapi.ContainerEventResponse) string {
	kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
	text := fmt.Sprintf("%s %s, pod %s", e.GetContainerId(), strings.ToLower(kind),
		strings.ToLower(strings.TrimPrefix(e.GetPodSandboxStatus().GetState().String(), "SANDBOX_")))
	for _, c := range e.GetContainersStatuses() {
		text += fmt.Sprintf(", %s %s", c.GetId(), stateName(c.GetState()))
	}
	return text
}

func (r *rig) expect(stream eventStream, want ...string) []*criapi.ContainerEventResponse {
	r.t.Helper()
	var all []*criapi.ContainerEventResponse
	for _, w := range want {
		e, err := stream.Recv()
		if err != nil {
			r.t.Fatalf("instead of %q: %v", w, err)
		}
		if got := word(e); got != w {
			r.t.Errorf("event %q, want %q", got, w)
		}
		if n := len(all); e.GetCreatedAt() <= 0 || (n > 0 && e.GetCreatedAt() < all[n-1].GetCreatedAt()) {
			r.t.Errorf("%s: created at %d", w, e.GetCreatedAt())
		}
		all = append(all, e)
	}
	return all
}

// The whole life of a pod and its container, seen by two readers, of whom one comes
// in the middle.
func TestEventsOfALife(t *testing.T) {
	r := newRig(t)
	stream := r.subscribe(r.client)
	before := time.Now().UnixNano()
	r.must(r.pod("p", nil))
	events := r.expect(stream, "p created, pod ready", "p started, pod ready")
	if s := events[0].GetPodSandboxStatus(); s.GetId() != "p" || s.GetMetadata().GetUid() != "uid-p" || events[0].GetCreatedAt() < before {
		t.Errorf("the first event is %v", events[0])
	}
	r.must(r.container("p", "c", nil), r.run("c"))
	second := r.subscribe(r.client)
	r.exit("c", 3)
	r.must(r.container("p", "d", nil), r.down(steps.Container, steps.Remove, "c"))
	r.must(r.down(steps.Sandbox, steps.Destroy, "p"), r.down(steps.Container, steps.Remove, "d"), r.down(steps.Sandbox, steps.Cleanup, "p"))
	r.expect(stream, "c created, pod ready, c created", "c started, pod ready, c running")
	late := []string{
		"c stopped, pod ready, c exited", "d created, pod ready, c exited, d created", "c deleted, pod ready, d created",
		"p stopped, pod notready, d created", "d deleted, pod notready", "p deleted, pod notready",
	}
	for _, s := range []eventStream{stream, second} {
		events := r.expect(s, late...)
		if c := events[0].GetContainersStatuses()[0]; c.GetExitCode() != 3 || c.GetFinishedAt() == 0 || c.GetReason() == "" {
			t.Errorf("how c ended: %v", c)
		}
	}
}

func TestEventsOfFailures(t *testing.T) {
	r := newRig(t)
	stream := r.subscribe(r.client)
	r.must(r.pod("p", nil), r.container("p", "c", nil))
	for _, name := range []string{"make", "task", "net"} {
		r.fail.Store(name, true)
	}
	if err := r.container("p", "never", nil); err == nil {
		t.Error("its create has not failed")
	}
	if err := r.pod("never", nil); err == nil {
		t.Error("its create has not failed")
	}
	if _, err := r.client.StartContainer(t.Context(), &criapi.StartContainerRequest{ContainerId: "c"}); err == nil {
		t.Error("its start has not failed")
	}
	r.must(r.down(steps.Container, steps.Remove, "c"))
	events := r.expect(stream, "p created, pod ready", "p started, pod ready", "c created, pod ready, c created",
		"c stopped, pod ready, c exited", "c deleted, pod ready")
	if s := events[3].GetContainersStatuses()[0]; s.GetReason() != startError || s.GetExitCode() != startErrorCode || s.GetStartedAt() != 0 {
		t.Errorf("the start that failed: %v", s)
	}
}

// A pod whose shim goes away stops, once.
func TestEventsOfALostPod(t *testing.T) {
	r := newRig(t)
	r.must(r.pod("p", nil))
	stream := r.subscribe(r.client)
	r.monitor.setLost(t.Context(), "p", true)
	r.monitor.setLost(t.Context(), "p", true)
	r.must(r.down(steps.Sandbox, steps.Destroy, "p"), r.down(steps.Sandbox, steps.Cleanup, "p"))
	r.expect(stream, "p stopped, pod notready", "p deleted, pod notready")
}

// An exit is told with how it was, also when the task is taken down first.
func TestEventsOfAForcedStop(t *testing.T) {
	r := newRig(t)
	r.must(r.pod("p", nil), r.container("p", "c", nil), r.run("c"))
	stream := r.subscribe(r.client)
	r.must(r.monitor.forceStop(t.Context(), "c"))
	r.exit("c", 0) // the monitor comes too late
	r.must(r.down(steps.Container, steps.Remove, "c"))
	events := r.expect(stream, "c stopped, pod ready, c exited", "c deleted, pod ready")
	if s := events[0].GetContainersStatuses()[0]; s.GetExitCode() != 137 {
		t.Errorf("the exit: %v", s)
	}
}

// Many pods live at once while readers come: each sees every state of every container
// that it could see from the beginning, once and in order, and is told in the end
// what is true.
func TestEventsExactlyOnceAndInOrder(t *testing.T) {
	r := newRig(t)
	const pods, lives = 6, 15
	first := r.subscribe(r.client)
	var movers sync.WaitGroup
	for i := range pods {
		movers.Go(func() {
			pod := fmt.Sprintf("p%d", i)
			if err := r.pod(pod, nil); err != nil {
				t.Error(err)
			}
			for n := range lives {
				id := fmt.Sprintf("%s-c%02d", pod, n)
				err := r.container(pod, id, nil)
				if err == nil {
					err = r.run(id)
				}
				r.exit(id, int32(n))
				if err == nil && n%3 != 0 {
					err = r.down(steps.Container, steps.Remove, id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	second := r.subscribe(r.dial())
	movers.Wait()
	r.must(r.pod("last", nil))
	for n, stream := range []eventStream{first, second} {
		story, last := follow(t, stream)
		for id, types := range story {
			const full = "CREATED STARTED STOPPED DELETED"
			got := strings.Join(types, " ")
			// Who came in the middle has not seen the beginning of some.
			if !strings.Contains(full, got) || (n == 0 && !strings.HasPrefix(full, got)) {
				t.Errorf("reader %d, %s: %s", n, id, got)
			}
		}
		if n == 0 && len(story) != pods*(lives+1)+1 {
			t.Errorf("the first reader is told of %d", len(story))
		}
		for pod, e := range last {
			now, err := r.PodSandboxStatus(t.Context(), &criapi.PodSandboxStatusRequest{PodSandboxId: pod})
			r.must(err)
			if !slices.EqualFunc(e.GetContainersStatuses(), now.GetContainersStatuses(), equalStatus) {
				t.Errorf("reader %d, %s: the last event and the status differ", n, pod)
			}
			if now.GetTimestamp() != 0 {
				t.Errorf("the status of %s has a timestamp, which misleads kubelet 1.37", pod)
			}
		}
	}
}

func equalStatus(a, b *criapi.ContainerStatus) bool { return proto.Equal(a, b) }

// follow reads up to the start of the pod "last".
func follow(t *testing.T, stream eventStream) (story map[string][]string, last map[string]*criapi.ContainerEventResponse) {
	t.Helper()
	story, last = map[string][]string{}, map[string]*criapi.ContainerEventResponse{}
	var at int64
	for {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.GetCreatedAt() < at {
			t.Errorf("%s is earlier than the one before", word(e))
		}
		at = e.GetCreatedAt()
		kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
		story[e.GetContainerId()] = append(story[e.GetContainerId()], kind)
		last[e.GetPodSandboxStatus().GetId()] = e
		if e.GetContainerId() == "last" && kind == "STARTED" {
			return story, last
		}
	}
}

// A reader that does not read holds up nobody. It gets what was on the way, and then
// is told that it has lost events; another is not concerned.
func TestSlowReaderOfEvents(t *testing.T) {
	r := newRig(t)
	slow, quick := r.subscribe(r.dial()), r.subscribe(r.client)
	r.must(r.pod("p", &criapi.PodSandboxConfig{Annotations: map[string]string{"a": strings.Repeat("x", 1<<16)}}), r.container("p", "c", nil))
	r.expect(quick, "p created, pod ready", "p started, pod ready", "c created, pod ready, c created")
	for n := range maxWaiting + 10 { // changes that are no events fill the queue too
		r.must(r.engine.Amend(t.Context(), steps.Container, "c", steps.ContainerResources.With(protoOf(&criapi.ContainerResources{}))))
		if n%1000 == 0 { // the quick one follows
			r.must(r.container("p", fmt.Sprint("x", n), nil))
			if e, err := quick.Recv(); err != nil || e.GetContainerId() != fmt.Sprint("x", n) {
				t.Fatalf("%v, %v", e, err)
			}
		}
	}
	var err error
	got := 0
	for ; err == nil; got++ {
		_, err = slow.Recv()
	}
	if interceptors.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), engine.ErrOverflow.Error()) || got < 2 {
		t.Errorf("after %d events: %v", got, err)
	}
	again := r.subscribe(r.dial())
	r.must(r.run("c"))
	if e, err := again.Recv(); err != nil || e.GetContainerEventType() != criapi.ContainerEventType_CONTAINER_STARTED_EVENT {
		t.Errorf("the second try: %v, %v", e, err)
	}
}

func TestEventsEnd(t *testing.T) {
	r := newRig(t)
	gone, cancel := context.WithCancel(t.Context())
	stream, err := r.client.GetContainerEvents(gone, &criapi.GetEventsRequest{})
	r.must(err)
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if method := <-r.ended; method != "GetContainerEvents" {
		t.Errorf("%s has ended", method)
	}
	stream = r.subscribe(r.client)
	r.Drain()
	r.Drain()
	if _, err := stream.Recv(); interceptors.Code(err) != codes.Unavailable {
		t.Errorf("when the daemon stops: %v", err)
	}
}
