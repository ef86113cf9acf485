// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFrozenShim: while a pod's shim hangs, StopContainer does not say that it has ended
// what still runs, and other pods are served; once the shim goes on, all can be removed.
func TestFrozenShim(t *testing.T) {
	n := newNode(t, options{})
	cfg, other := n.pod("frozen"), n.pod("other")
	pod, free := n.run(cfg), n.run(other)
	ctr := n.started(pod, cfg, n.ctr("c", "sleep", "987654"))
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: ctr, Timeout: 1})
		cancel()
		if running := len(n.pidsWith("987654")) > 0; err == nil && running {
			t.Fatal("StopContainer says that it has ended what still runs")
		}
	}
	n.started(free, other, n.ctr("d", "true"))
	n.remove(free)
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	_, err := n.client.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: ctr, Timeout: 1})
	must(t, err)
	if left := n.pidsWith("987654"); len(left) > 0 {
		t.Errorf("processes %v still run", left)
	}
	n.remove(pod)
	n.same()
}
