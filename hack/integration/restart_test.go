// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestRestart ends containers while the daemon is down, in order and by a kill: each exit is
// known afterwards, with its code and time, and what ran runs on (CASES 13).
func TestRestart(t *testing.T) {
	for name, end := range map[string]func(n *node) error{
		"stopped": func(n *node) error { return n.daemon.Stop() },
		"killed":  func(n *node) error { return n.daemon.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, options{})
			cfg := n.pod("survivor")
			pod := n.run(cfg)
			seven := n.started(pod, cfg, n.ctr("seven", "sh", "-c", "until [ -e /go ]; do sleep 0.05; done; echo last words; exit 7"))
			killed := n.started(pod, cfg, n.ctr("killed", "sleep", "4711"))
			runs := n.started(pod, cfg, n.ctr("runs", "sh", "-c", "i=0; while sleep 0.1; do i=$((i+1)); echo $i; done"))
			ip := n.ip(pod)
			must(t, end(n))
			n.touchIn("until [ -e /go ]", "/go")
			for _, pid := range n.pidsWith("sleep\x004711") {
				must(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			waitFor(t, "the exits", func() bool {
				return len(n.pidsWith("sleep\x004711"))+len(n.pidsWith("until [ -e /go ]")) == 0
			})
			ended := time.Now()
			time.Sleep(1100 * time.Millisecond) // tells the exit's time from the restart's
			must(t, n.daemon.Start(t.Context()))
			n.wantExit(seven, 7, ended)
			n.wantExit(killed, 137, ended)
			if s := n.status(runs); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("the third container is %v", s.GetState())
			}
			if got := n.exec(runs, "echo", "still here"); got != "still here\n" {
				t.Errorf("exec after the restart printed %q", got)
			}
			if got := n.pods(); len(got) != 1 || got[0].GetState() != cri.PodSandboxState_SANDBOX_READY || n.ip(pod) != ip {
				t.Errorf("after the restart: %v, address %s (was %s)", got, n.ip(pod), ip)
			}
			if got := n.log(cfg, "seven"); len(got) != 1 || got[0].text != "last words" {
				t.Errorf("the log of the exited container: %v", got)
			}
			n.remove(pod)
			n.same()
		})
	}
}

func (n *node) wantExit(ctr string, code int32, by time.Time) {
	n.t.Helper()
	s := n.exited(ctr)
	if s.GetExitCode() != code {
		n.t.Errorf("exit code %d (%s), want %d", s.GetExitCode(), s.GetReason(), code)
	}
	if at := time.Unix(0, s.GetFinishedAt()); at.After(by.Add(500*time.Millisecond)) || at.Before(by.Add(-patience)) {
		n.t.Errorf("finished at %s, want %s", at, by)
	}
}

func (n *node) ip(pod string) string {
	n.t.Helper()
	r, err := n.client.PodSandboxStatus(n.t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	must(n.t, err)
	return r.GetStatus().GetNetwork().GetIp()
}
