// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// told waits for the event of a subject and checks its type and the state it tells of it.
func told(t *testing.T, stream cri.RuntimeService_GetContainerEventsClient, id, want string) *cri.ContainerEventResponse {
	t.Helper()
	e, err := stream.Recv()
	must(t, err)
	state := strings.TrimPrefix(e.GetPodSandboxStatus().GetState().String(), "SANDBOX_")
	for _, c := range e.GetContainersStatuses() {
		if c.GetId() == e.GetContainerId() {
			state = strings.TrimPrefix(c.GetState().String(), "CONTAINER_")
		}
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
	if got := fmt.Sprintf("%s %s", kind, state); e.GetContainerId() != id || got != want {
		t.Errorf("event %q of %s, want %q of %s", got, e.GetContainerId(), want, id)
	}
	return e
}

// TestEvents follows real processes: one that ends by itself, one that is stopped, and a pod
// whose shim is killed. When the daemon stops the stream ends at once.
func TestEvents(t *testing.T) {
	n := newNode(t, options{})
	stream, err := n.client.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	must(t, err)
	_, err = stream.Header()
	must(t, err)

	cfg := n.pod("eventful")
	pod := n.run(cfg)
	told(t, stream, pod, "CREATED READY")
	if e := told(t, stream, pod, "STARTED READY"); e.GetPodSandboxStatus().GetNetwork().GetIp() != n.ip(pod) {
		t.Errorf("the address of the pod is %q", e.GetPodSandboxStatus().GetNetwork().GetIp())
	}
	seven := n.started(pod, cfg, n.ctr("seven", "sh", "-c", "exit 7"))
	told(t, stream, seven, "CREATED CREATED")
	told(t, stream, seven, "STARTED RUNNING")
	if e := told(t, stream, seven, "STOPPED EXITED"); e.GetContainersStatuses()[0].GetExitCode() != 7 {
		t.Errorf("the exit is told as %v", e.GetContainersStatuses())
	}
	sleeps := n.started(pod, cfg, n.ctr("sleeps", "sleep", "1000"))
	told(t, stream, sleeps, "CREATED CREATED")
	told(t, stream, sleeps, "STARTED RUNNING")
	_, err = n.client.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: sleeps})
	must(t, err)
	told(t, stream, sleeps, "STOPPED EXITED")
	_, err = n.client.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: sleeps})
	must(t, err)
	told(t, stream, sleeps, "DELETED READY")

	for _, pid := range n.pidsWith(pod) { // only its shim is left
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	told(t, stream, pod, "STOPPED NOTREADY")
	n.remove(pod)
	told(t, stream, seven, "DELETED NOTREADY")
	told(t, stream, pod, "DELETED NOTREADY")

	n.collect() // the collection that the removals ask for would end with the daemon
	must(t, n.daemon.Stop())
	if e, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("when the daemon stops: %v, %v", e, err)
	}
	must(t, n.daemon.Start(t.Context()))
	n.same()
}
