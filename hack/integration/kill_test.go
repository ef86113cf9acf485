// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestKilledInPodCreate kills the daemon within each action, before it has done anything and
// after it has done all: at the next start the pod is whole or gone (CASES 6).
func TestKilledInPodCreate(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("cut-off")
	for _, action := range podActions {
		// An action that has done its part before the kill: the next one hangs.
		fault := fmt.Sprintf("do:%s=hang", action)
		n.killAt(fault, func() { _, _ = n.tryRun(t.Context(), cfg, "") })
		n.wholeOrGone(action)
		n.remove(n.run(cfg))
	}
	n.same()
}

// TestKilledInContainerCreate is the same for containers.
func TestKilledInContainerCreate(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("host")
	pod := n.run(cfg)
	for _, action := range append(containerActions, "nri-start", "task") {
		c := n.ctr("cut-off-"+action, "sleep", "1000")
		n.killAt(fmt.Sprintf("do:%s=hang", action), func() {
			id, err := n.tryCreate(t.Context(), pod, cfg, c)
			if err == nil {
				_ = n.tryStart(t.Context(), id)
			}
		})
		for _, k := range n.containers() {
			if k.GetState() == cri.ContainerState_CONTAINER_UNKNOWN {
				t.Errorf("killed in %s: the container is in state unknown", action)
			}
			n.removeContainer(k.GetId())
		}
		n.removeContainer(n.started(pod, cfg, c))
	}
	n.remove(pod)
	n.same()
}

// TestKilledInDestroy kills the daemon on the way down.
func TestKilledInDestroy(t *testing.T) {
	n := newNode(t, options{})
	for _, action := range podActions {
		cfg := n.pod("half-gone-" + action)
		pod := n.run(cfg)
		n.started(pod, cfg, n.ctr("c", "sleep", "1000"))
		n.killAt(fmt.Sprintf("undo:%s=hang", action), func() {
			_, _ = n.client.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: pod})
		})
		n.remove(pod)
	}
	n.same()
}

// TestKilledInPlugin kills the daemon while a CNI plugin works that has leased an address (CASES 6).
func TestKilledInPlugin(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("leased")
	must(t, os.WriteFile(n.control, []byte("sleep ADD 1s"), 0o644))
	calls := len(n.cniCalls())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = n.tryRun(t.Context(), cfg, "")
	}()
	waitFor(t, "the plugin", func() bool { return len(n.cniCalls()) > calls })
	must(t, n.daemon.Kill())
	<-done
	must(t, os.Remove(n.control))
	must(t, n.daemon.Start(t.Context()))
	n.wholeOrGone("the plugin")
	n.same()
	if last := n.cniCalls(); !strings.HasPrefix(last[len(last)-1], "DEL ") {
		t.Errorf("the last call of the plugin is %q, not DEL", last[len(last)-1])
	}
}

// TestAfterReboot takes away all that a reboot takes: the daemon finds the pod NOTREADY, calls
// DEL with no netns, and both stops succeed (CASES 8).
func TestAfterReboot(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("rebooted")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sleep", "1000"))
	must(t, n.daemon.Stop())
	n.killAllOf(pod)
	n.unmountAllOf(pod, ctr)
	n.removeCgroupsOf(pod, ctr)
	must(t, os.RemoveAll(n.daemon.State))
	must(t, n.daemon.Start(t.Context()))
	if got := n.pods(); len(got) != 1 || got[0].GetState() != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Fatalf("after a reboot: %v", got)
	}
	if s := n.status(ctr); s.GetState() == cri.ContainerState_CONTAINER_RUNNING {
		t.Error("the container is said to run")
	}
	for range 2 {
		_, err := n.client.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: pod})
		must(t, err)
	}
	n.remove(pod)
	if calls := n.cniCalls(); strings.TrimSpace(calls[len(calls)-1]) != "DEL "+pod {
		t.Errorf("the last call of the plugin is %q: want DEL with the pod's ID and no netns", calls[len(calls)-1])
	}
	n.same("firewall rules") // a reboot takes those; the bridge plugin, without a netns, does not
}

// TestShimKilled kills a pod's shim: the pod is NOTREADY soon, and can be removed (CASES 9).
func TestShimKilled(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("orphaned")
	pod := n.run(cfg)
	n.started(pod, cfg, n.ctr("c", "sleep", "1000"))
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	waitFor(t, "the pod to be NOTREADY", func() bool {
		return n.pods()[0].GetState() == cri.PodSandboxState_SANDBOX_NOTREADY
	})
	n.remove(pod)
	n.same()
}

// TestShimDirectoryRemoved removes what is known of a shim by hand: it is found all the same,
// and ended with all that it runs.
func TestShimDirectoryRemoved(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("hidden")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	pod := n.run(cfg)
	c := n.ctr("c", "sleep", "976543")
	c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	n.started(pod, cfg, c)
	must(t, os.RemoveAll(filepath.Join(n.daemon.State, "pods", pod, "shim")))
	n.remove(pod)
	if left := append(n.pidsWith(pod), n.pidsWith("976543")...); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	n.same()
}

// killAt runs a call that hangs at a fault, kills the daemon there, and starts it again.
func (n *node) killAt(fault string, call func()) {
	n.t.Helper()
	n.fault(fault)
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	n.reached(fault)
	must(n.t, n.daemon.Kill())
	<-done
	n.fault()
	must(n.t, n.daemon.Start(n.t.Context()))
}

// wholeOrGone checks the pods after a kill, and removes those that are whole.
func (n *node) wholeOrGone(where string) {
	n.t.Helper()
	for _, p := range n.pods() {
		if p.GetState() != cri.PodSandboxState_SANDBOX_READY {
			n.t.Errorf("killed in %s: the pod is neither whole nor gone: %v", where, p.GetState())
		}
		n.remove(p.GetId())
	}
	n.same()
}

func (n *node) removeContainer(id string) {
	n.t.Helper()
	_, err := n.client.RemoveContainer(n.t.Context(), &cri.RemoveContainerRequest{ContainerId: id})
	must(n.t, err)
}
