// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	podActions       = []string{"files", "namespaces", "network", "shim", "nri-pod"}
	containerActions = []string{"rootfs", "volumes", "spec", "nri-container"}
	// kinds: it fails before it has done anything, after it has done all, or by the caller's deadline.
	kinds = []string{"fail", "late", "hang"}
)

// TestFailedPodsLeaveNothing makes each action of a pod's create fail in turn, a hundred times.
func TestFailedPodsLeaveNothing(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("unlucky")
	for i := range 100 {
		n.fault(fmt.Sprintf("do:%s=%s", podActions[i%len(podActions)], kinds[i/len(podActions)%len(kinds)]))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if id, err := n.tryRun(ctx, cfg, ""); err == nil {
			t.Fatalf("round %d: pod %s was made in spite of the fault", i, id)
		}
		cancel()
		n.quiet()
		if i%10 == 9 {
			n.fault()
			n.remove(n.run(cfg)) // the same metadata
		}
	}
	n.same()
}

// TestFailedContainersLeaveNothing is the same for CreateContainer and StartContainer (CASES 15, 16).
func TestFailedContainersLeaveNothing(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("host")
	pod := n.run(cfg)
	c := n.ctr("unlucky", "sleep", "1000")
	for i := range 60 {
		n.fault(fmt.Sprintf("do:%s=%s", containerActions[i%len(containerActions)], kinds[i/len(containerActions)%len(kinds)]))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if id, err := n.tryCreate(ctx, pod, cfg, c); err == nil {
			t.Fatalf("round %d: container %s was made in spite of the fault", i, id)
		}
		cancel()
		n.quiet()
	}
	for _, kind := range []string{"fail", "late"} {
		n.fault()
		id := n.created(pod, cfg, c)
		n.fault("do:task=" + kind)
		if err := n.tryStart(t.Context(), id); err == nil {
			t.Fatal("the container was started in spite of the fault")
		}
		if s := n.status(id); s.GetExitCode() == 0 || s.GetReason() != "StartError" || s.GetFinishedAt() < s.GetCreatedAt() {
			t.Errorf("after a failed start: exit code %d, reason %q, finished %d", s.GetExitCode(), s.GetReason(), s.GetFinishedAt())
		}
		n.removeContainer(id)
	}
	n.fault()
	n.removeContainer(n.started(pod, cfg, c))
	n.remove(pod)
	n.same()
}

// TestClientGoesAway cancels RunPodSandbox within each action, a hundred times, and sends the
// same request again at once (CASES 5).
func TestClientGoesAway(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("impatient")
	for i := range 100 {
		fault := fmt.Sprintf("do:%s=sleep150ms", podActions[i%len(podActions)])
		n.fault(fault)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := n.tryRun(ctx, cfg, "")
			done <- err
		}()
		n.reached(fault)
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Fatalf("round %d: %v", i, err)
		}
		if i%10 == 9 {
			n.fault()
			n.remove(n.run(cfg)) // waits for the rollback, then starts clean
		}
	}
	n.same()
	adds, dels := 0, map[string]bool{}
	for _, call := range n.cniCalls() {
		var verb, id, netns string
		_, _ = fmt.Sscan(call, &verb, &id, &netns)
		switch verb {
		case "ADD":
			adds++
			dels[id] = dels[id] || false
		case "DEL":
			dels[id] = true
		}
	}
	for id, del := range dels {
		if !del {
			t.Errorf("no DEL for the ADD of %s", id)
		}
	}
	if adds == 0 {
		t.Error("the plugin has seen no ADD")
	}
}

// TestFailingPlugin has the last plugin of the chain fail after an address was leased.
func TestFailingPlugin(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("unplugged")
	must(t, os.WriteFile(n.control, []byte("fail ADD"), 0o644))
	for range 5 {
		_, err := n.tryRun(t.Context(), cfg, "")
		refused(t, err, "failcni", codes.Unavailable)
	}
	n.same()
	must(t, os.Remove(n.control))
	n.remove(n.run(cfg))
	n.same()
}

// TestStuckDescent has an undo fail: the pod stays visible, does not block others, and goes
// once the undo works again.
func TestStuckDescent(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("stuck")
	n.fault("do:shim=fail", "undo:network=fail")
	if _, err := n.tryRun(t.Context(), cfg, ""); err == nil {
		t.Fatal("the pod was made in spite of the fault")
	}
	if got := n.pods(); len(got) != 1 || got[0].GetState().String() != "SANDBOX_NOTREADY" {
		t.Fatalf("the stuck pod is not listed as NOTREADY: %v", got)
	}
	n.fault("undo:network=fail")
	other := n.run(n.pod("other"))
	n.fault()
	n.remove(other)
	for _, p := range n.pods() {
		n.remove(p.GetId())
	}
	n.same()
}
