// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

// life runs a pod through all that a runtime must be able to do, with something in the middle.
func (n *node) life(handler string, middle func()) {
	n.t.Helper()
	cfg := n.pod("life")
	pod, err := n.tryRun(n.t.Context(), cfg, handler)
	must(n.t, err)
	ctr := n.started(pod, cfg, n.ctr("c", "sh", "-c", "echo out; echo err >&2; until [ -e /go ]; do sleep 0.02; done; exit 5"))
	if got := n.exec(ctr, "hostname"); got != "life\n" {
		n.t.Errorf("hostname is %q", got)
	}
	if got := n.pods(); len(got) != 1 || got[0].GetState() != cri.PodSandboxState_SANDBOX_READY || got[0].GetRuntimeHandler() != handler {
		n.t.Errorf("the pod is listed as %v", got)
	}
	if n.ip(pod) == "" {
		n.t.Error("the pod has no address")
	}
	middle()
	n.exec(ctr, "touch", "/go")
	if s := n.exited(ctr); s.GetExitCode() != 5 {
		n.t.Errorf("exit code %d (%s), want 5", s.GetExitCode(), s.GetReason())
	}
	records := n.log(cfg, "c")
	if rebuild(records, "stdout") != "out\n" || rebuild(records, "stderr") != "err\n" {
		n.t.Errorf("the log is %v", records)
	}
	n.remove(pod)
	n.same()
}

// TestHandlers runs a pod with each kind of runtime handler.
func TestHandlers(t *testing.T) {
	l := lab(t)
	stock := fmt.Sprintf("[runtime.handlers.h]\ntype = %q\noptions = {BinaryName = %q, Root = %q}\n",
		l.Bin("containerd-shim-runc-v2"), l.Bin("runc"), filepath.Join("/run", "stock"))
	for name, extra := range map[string]string{
		"default":                             "",
		"stock shim":                          stock,
		"stock shim with a sandbox container": stock + "sandbox = \"container\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			handler := "h"
			if extra == "" {
				handler = ""
			}
			n := newNode(t, options{Options: harness.Options{Extra: extra}})
			if strings.Contains(name, "container") {
				n.pull(images.Pause)
				// The first pod makes the image's snapshots and the runtime's directories.
				cfg := n.pod("first")
				id, err := n.tryRun(t.Context(), cfg, handler)
				must(t, err)
				n.remove(id)
				n.before = n.count()
			} else if extra != "" {
				id, err := n.tryRun(t.Context(), n.pod("first"), handler)
				must(t, err)
				n.remove(id)
				n.before = n.count()
			}
			n.life(handler, n.restart)
		})
	}
}

// TestCrun runs a pod with crun, which refuses a node with both kinds of cgroups.
func TestCrun(t *testing.T) {
	crun, err := exec.LookPath("crun")
	if err != nil {
		t.Skip("crun is not installed")
	}
	n := newNode(t, options{Options: harness.Options{
		HideCgroup2: true,
		Extra:       fmt.Sprintf("[runtime.handlers.crun]\nbinary = %q\noci_version = \"1.0.2\"\n", crun),
	}})
	n.life("crun", func() {}) // a restart would lose what is pinned in its mount namespace
}

// TestAttached uses a containerd that runs already.
func TestAttached(t *testing.T) {
	l := lab(t)
	must(t, l.WriteNetwork(l.ConfDir()))
	must(t, registry(t, l).WriteHosts(l.CertsDir()))
	d, err := l.Upstream(harness.Options{Name: "upstream"})
	must(t, err)
	must(t, d.Start(t.Context()))
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	n := newNode(t, options{Options: harness.Options{Address: d.Containerd}})
	n.life("", n.restart)
}

// TestSharedPIDs is a pod whose containers see each other's processes; its init reaps them.
func TestSharedPIDs(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("shared")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	pod := n.run(cfg)
	a, b := n.ctr("a", "sleep", "4713"), n.ctr("b", "sh", "-c", "(sleep 0.1 &) ; exec sleep 4714")
	for _, c := range []*cri.ContainerConfig{a, b} {
		c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	}
	ctr := n.started(pod, cfg, a)
	n.started(pod, cfg, b)
	waitFor(t, "the other container's process, and no zombie", func() bool {
		ps := n.exec(ctr, "ps")
		return strings.Contains(ps, "sleep 4714") && !strings.Contains(ps, "[sleep]")
	})
	n.remove(pod)
	n.same()
}
