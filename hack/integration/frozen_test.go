// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
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

// removalBound is what the removal of a pod may take whose shim or OCI runtime hangs.
const removalBound = 30 * time.Second

// TestFrozenShimIsRemovedByForce: the doctor names the pod, and a pod whose shim never goes on
// is removed within a bound with all that runs in it.
func TestFrozenShimIsRemovedByForce(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("frozen")
	pod := n.run(cfg)
	for i := range 3 {
		n.started(pod, cfg, n.ctr(fmt.Sprintf("c%d", i), "sleep", "987655"))
	}
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	if out, err := n.sandflow("doctor"); err == nil || !strings.Contains(out, "is stopped") || !strings.Contains(out, "default/frozen") {
		t.Errorf("the doctor (%v) says\n%s", err, out)
	}
	start := time.Now()
	n.remove(pod)
	if took := time.Since(start); took > removalBound {
		t.Errorf("it took %s", took)
	}
	if left := append(n.pidsWith(pod), n.pidsWith("987655")...); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	n.same()
}

// TestFrozenRuntime: runc hangs while it makes a container. Others are made meanwhile, and the
// pod is removed within a bound, with the process that hangs.
func TestFrozenRuntime(t *testing.T) {
	l := lab(t)
	runc := filepath.Join(l.Dir, "freezing-runc")
	text := fmt.Sprintf("#!/bin/sh\ncase \" $* \" in *\" create \"*) kill -STOP $$ ;; esac\nexec %q \"$@\"\n", l.Bin("runc"))
	must(t, os.WriteFile(runc, []byte(text), 0o755))
	n := newNode(t, options{Options: harness.Options{Extra: fmt.Sprintf("[runtime.handlers.freezing]\nbinary = %q\n", runc)}})
	cfg, other := n.pod("hangs"), n.pod("other")
	pod, err := n.tryRun(t.Context(), cfg, "freezing")
	must(t, err)
	id := n.created(pod, cfg, n.ctr("c", "sleep", "1000"))
	done := make(chan error, 1)
	go func() { done <- n.tryStart(t.Context(), id) }()
	waitFor(t, "runc to hang", func() bool { return len(n.pidsWith("freezing-runc")) > 0 })
	free := n.run(other)
	n.started(free, other, n.ctr("d", "true"))
	n.remove(free)
	if s := n.status(id); s.GetState() != cri.ContainerState_CONTAINER_CREATED {
		t.Errorf("the container that is being started is %v", s.GetState())
	}
	start := time.Now()
	n.remove(pod)
	if took := time.Since(start); took > removalBound {
		t.Errorf("it took %s", took)
	}
	if err := <-done; err == nil {
		t.Error("the container was started")
	}
	waitFor(t, "the end of runc", func() bool { return len(n.pidsWith("freezing-runc")) == 0 })
	n.same()
}

// TestFrozenPlugin: a network plugin is stopped as it attaches a pod. Others come and go, the
// lists answer; when the client gives up, the plugin is ended and what it has made undone.
func TestFrozenPlugin(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("hangs")
	must(t, os.WriteFile(n.control, []byte("hang ADD"), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := n.tryRun(ctx, cfg, "")
		done <- err
	}()
	waitFor(t, "the plugin", func() bool { return len(n.pidsWith("failcni")) > 0 })
	for _, pid := range n.pidsWith("failcni") {
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	must(t, os.Remove(n.control))
	n.remove(n.run(n.pod("other")))
	if got := n.pods(); len(got) != 0 {
		t.Errorf("pods %v are listed", got)
	}
	cancel()
	if err := <-done; status.Code(err) != codes.Canceled {
		t.Errorf("the caller is told %v", err)
	}
	start := time.Now()
	n.remove(n.run(cfg)) // waits for the rollback
	if took := time.Since(start); took > removalBound {
		t.Errorf("it took %s", took)
	}
	if left := n.pidsWith("failcni"); len(left) > 0 {
		t.Errorf("plugins %v are left", left)
	}
	n.same()
}
