// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestStopGoesOn kills the daemon while a stop waits for the grace period to end, and lets the
// client of another give up: both containers get one signal, what is left of the grace period,
// and then they are killed, whether the client comes again or not.
func TestStopGoesOn(t *testing.T) {
	const grace = 6 * time.Second
	script := `trap 'echo asked' TERM; touch /ready; while :; do sleep 0.05; done`
	for name, c := range map[string]struct{ dies, again bool }{
		"the daemon is killed": {true, false}, "the daemon is killed, the client comes again": {true, true},
		"the client gives up": {false, false}, "the client gives up and comes again": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, options{})
			cfg := n.pod("deaf")
			pod := n.run(cfg)
			id := n.started(pod, cfg, n.ctr("c", "sh", "-c", script))
			waitFor(t, "the container", func() bool {
				r, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"test", "-e", "/ready"}, Timeout: 10})
				return err == nil && r.GetExitCode() == 0
			})
			stop := func(ctx context.Context) error {
				_, err := n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: int64(grace / time.Second)})
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked, done := time.Now(), make(chan error, 1)
			go func() { done <- stop(ctx) }()
			waitFor(t, "the signal", func() bool { return len(n.log(cfg, "c")) == 1 })
			if c.dies {
				must(t, n.daemon.Kill())
			} else {
				cancel()
			}
			if err := <-done; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
				t.Fatal(err)
			}
			if c.dies {
				must(t, n.daemon.Start(t.Context()))
			}
			if s := n.status(id); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("before its time is over it is %v", s.GetState())
			}
			if c.again {
				must(t, stop(t.Context()))
			}
			if s := n.exited(id); s.GetExitCode() != 137 {
				t.Errorf("exit code %d", s.GetExitCode())
			}
			if took := time.Since(asked); took < grace-time.Second || took > grace+patience/2 {
				t.Errorf("it was killed after %s", took)
			}
			if got := n.log(cfg, "c"); len(got) != 1 {
				t.Errorf("it was asked %d times", len(got))
			}
			n.remove(pod)
			n.same()
		})
	}
}

// TestOOMWhileAway: a container runs out of memory while there is no daemon.
func TestOOMWhileAway(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("hungry")
	pod := n.run(cfg)
	wait := "until [ -e /go ]; do sleep 0.02; done; "
	hungry := n.ctr("hungry", "sh", "-c", wait+"tail -c 1000000000 /dev/zero")
	hungry.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
	id := n.started(pod, cfg, hungry)
	must(t, n.daemon.Kill())
	n.touchIn(wait, "/go")
	waitFor(t, "the end of the container", func() bool { return len(n.pidsWith(wait)) == 0 })
	ended := time.Now()
	must(t, n.daemon.Start(t.Context()))
	n.wantExit(id, 137, ended)
	if s := n.status(id); s.GetReason() != "OOMKilled" {
		t.Errorf("reason %q", s.GetReason())
	}
	n.remove(pod)
	n.same()
}

// TestRotationWhileAway: kubelet moves the log away while there is no daemon, and asks for a new
// one when there is. No line is lost, none comes twice, and all are in order.
func TestRotationWhileAway(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("busy")
	pod := n.run(cfg)
	id := n.started(pod, cfg, n.ctr("busy", "sh", "-c", "i=0; until [ -e /go ]; do i=$((i+1)); echo $i; done"))
	path := filepath.Join(cfg.GetLogDirectory(), "busy.log")
	grown := func(file string) {
		t.Helper()
		before, err := os.Stat(file)
		must(t, err)
		waitFor(t, "more lines", func() bool {
			now, err := os.Stat(file)
			return err == nil && now.Size() > before.Size()+1000
		})
	}
	grown(path)
	must(t, n.daemon.Kill())
	must(t, os.Rename(path, path+".1"))
	grown(path + ".1") // it is written on
	must(t, n.daemon.Start(t.Context()))
	_, err := n.client.ReopenContainerLog(t.Context(), &cri.ReopenContainerLogRequest{ContainerId: id})
	must(t, err)
	grown(path)
	n.touchIn("until [ -e /go ]", "/go")
	n.exited(id)
	var all []string
	for _, file := range []string{path + ".1", path} {
		raw, err := os.ReadFile(file)
		must(t, err)
		all = append(all, strings.Split(strings.TrimSpace(string(raw)), "\n")...)
	}
	for i, line := range all {
		if !strings.HasSuffix(line, fmt.Sprintf(" F %d", i+1)) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	n.remove(pod)
	n.same()
}
