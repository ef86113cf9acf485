// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stream runs the client's side of exec or attach until it ends.
func stream(ctx context.Context, address string, o remotecommand.StreamOptions) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, "POST", u)
	if err != nil {
		return err
	}
	return e.StreamWithContext(ctx, o)
}

// attach sends a word to a container and leaves.
func (n *node) attach(ctr, word string) {
	n.t.Helper()
	r, err := n.client.Attach(n.t.Context(), &cri.AttachRequest{ContainerId: ctr, Stdin: true, Stdout: true})
	must(n.t, err)
	in, out := io.Pipe()
	var echoed bytes.Buffer
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- stream(ctx, r.GetUrl(), remotecommand.StreamOptions{Stdin: in, Stdout: &echoed}) }()
	_, err = io.WriteString(out, word+"\n")
	must(n.t, err)
	must(n.t, out.Close())
	select {
	case <-done: // the container ended
	case <-time.After(300 * time.Millisecond): // it goes on without us
		cancel()
		<-done
	}
}

// TestStdin is what stdin and stdin_once mean, also across a restart (CASES 35).
func TestStdin(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("cat")
	pod := n.run(cfg)
	stays := n.ctr("stays", "cat")
	stays.Stdin = true
	ctr := n.started(pod, cfg, stays)
	n.attach(ctr, "one")
	n.attach(ctr, "two")
	n.restart()
	n.attach(ctr, "three")
	waitFor(t, "the third word", func() bool { return len(n.log(cfg, "stays")) == 3 })
	if got := rebuild(n.log(cfg, "stays"), "stdout"); got != "one\ntwo\nthree\n" {
		t.Errorf("stdin only: the log is %q", got)
	}
	if s := n.status(ctr); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("stdin only: the container is %v after its clients have gone", s.GetState())
	}
	once := n.ctr("once", "cat")
	once.Stdin, once.StdinOnce = true, true
	ctr = n.started(pod, cfg, once)
	n.attach(ctr, "only")
	if s := n.exited(ctr); s.GetExitCode() != 0 || rebuild(n.log(cfg, "once"), "stdout") != "only\n" {
		t.Errorf("stdin once: exit code %d, log %v", s.GetExitCode(), n.log(cfg, "once"))
	}
	if s := n.exited(n.started(pod, cfg, n.ctr("none", "cat"))); s.GetExitCode() != 0 {
		t.Errorf("no stdin: exit code %d", s.GetExitCode())
	}
	n.remove(pod)
	n.same()
}

// TestStreamLeaks fails execs with a terminal and cuts attaches, many times: open files of
// daemon and shim are as many as before, and the container runs (CASES 33).
func TestStreamLeaks(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("silent")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("silent", "sleep", "1000"))
	round := func() {
		r, err := n.client.Exec(t.Context(), &cri.ExecRequest{ContainerId: ctr, Cmd: []string{"/no/such"}, Tty: true, Stdin: true, Stdout: true})
		must(t, err)
		if err := stream(t.Context(), r.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard, Tty: true}); err == nil {
			t.Fatal("exec of a command that is not there succeeded")
		}
		a, err := n.client.Attach(t.Context(), &cri.AttachRequest{ContainerId: ctr, Stdout: true})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_ = stream(ctx, a.GetUrl(), remotecommand.StreamOptions{Stdout: io.Discard})
		cancel()
	}
	for range 3 {
		round()
	}
	shim := n.pidsWith(pod)[0]
	daemon, shims := n.files(n.daemon.PID()), n.files(shim)
	for range 60 {
		round()
	}
	few := func() bool { return n.files(n.daemon.PID()) <= daemon+3 && n.files(shim) <= shims+3 }
	for deadline := time.Now().Add(patience); !few() && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	if !few() {
		t.Errorf("the daemon has %d open files (before: %d), the shim %d (before: %d): %v",
			n.files(n.daemon.PID()), daemon, n.files(shim), shims, n.kinds(n.daemon.PID()))
	}
	n.exec(ctr, "true")
	n.remove(pod)
	n.same()
}

// TestExecSyncTimeout kills the process that takes too long, with its children, and only that (CASES 30).
func TestExecSyncTimeout(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("probed")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("probed", "sleep", "1000"))
	pid := n.initOf(ctr)
	for range 5 {
		_, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"sh", "-c", "sleep 4712; true"}, Timeout: 1})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("want DeadlineExceeded, got %v", err)
		}
	}
	waitFor(t, "the probes' children to be gone", func() bool { return len(n.pidsWith("sleep\x004712")) == 0 })
	_, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"/no/such"}, Timeout: 5})
	if err == nil {
		t.Error("exec of a command that is not there succeeded")
	}
	if s := n.status(ctr); s.GetState() != cri.ContainerState_CONTAINER_RUNNING || n.initOf(ctr) != pid {
		t.Errorf("the container is %v, its process was %d and is %d", s.GetState(), pid, n.initOf(ctr))
	}
	n.remove(pod)
	n.same()
}

// TestExecSyncOutput is bounded at 16 MiB of each stream; the command ends with its own code (CASES 31).
func TestExecSyncOutput(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("loud")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("loud", "sleep", "1000"))
	const most = 16 << 20
	for printed, want := range map[string]int{"16777216": most, "16777217": most, "100000000": most, "5": 5} {
		r, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{
			ContainerId: ctr, Timeout: 60, Cmd: []string{"sh", "-c", "head -c " + printed + " /dev/zero; exit 3"},
		})
		must(t, err)
		if got := len(r.GetStdout()); got > want || got < want-4096 || r.GetExitCode() != 3 {
			t.Errorf("%s bytes printed: %d came back, exit code %d", printed, got, r.GetExitCode())
		}
	}
	n.remove(pod)
	n.same()
}

// TestSlowReader reads a long output slowly: all of it comes before the exit status (CASES 32, 34).
func TestSlowReader(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("long")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("long", "sleep", "1000"))
	r, err := n.client.Exec(t.Context(), &cri.ExecRequest{ContainerId: ctr, Cmd: []string{"sh", "-c", "seq 1 500000; exit 3"}, Stdout: true})
	must(t, err)
	slow := &slowWriter{}
	err = stream(t.Context(), r.GetUrl(), remotecommand.StreamOptions{Stdout: slow})
	if err == nil || !strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("want exit code 3, got %v", err)
	}
	if !strings.HasSuffix(slow.String(), "\n499999\n500000\n") {
		t.Errorf("the output ends after %d bytes", slow.Len())
	}
	n.remove(pod)
	n.same()
}

// slowWriter takes a while for each write.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(2 * time.Millisecond)
	return w.Buffer.Write(p)
}
