// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase31ExecSyncFlood runs eight commands at once that print more than comes back: each ends
// with its own code, and neither daemon nor shim keeps more than a few times the limit.
func TestCase31ExecSyncFlood(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("flood")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("flood", "sleep", "1000"))
	const most, atOnce = 16 << 20, 8
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			r, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{
				ContainerId: ctr, Timeout: 60, Cmd: []string{"sh", "-c", fmt.Sprintf("dd if=/dev/zero bs=1M count=40 2>/dev/null; exit %d", i)},
			})
			if err != nil {
				t.Error(err)
				return
			}
			if got := len(r.GetStdout()); got > most || got < most-4096 || int(r.GetExitCode()) != i {
				t.Errorf("%d bytes came back, exit code %d, want %d", got, r.GetExitCode(), i)
			}
		})
	}
	wg.Wait()
	// Each reply is built, encoded and sent: a few copies of what comes back, not of what is printed.
	if peak := n.memory(n.daemon.PID(), "VmHWM"); peak > atOnce*(most>>10)*6 {
		t.Errorf("the daemon took %d KiB", peak)
	}
	if peak := n.memory(n.pidsWith(pod)[0], "VmHWM"); peak > atOnce*(most>>10) {
		t.Errorf("the shim took %d KiB", peak)
	}
	n.remove(pod)
	n.same()
}

// window is the size of a client's terminal, told once.
type window struct {
	size *remotecommand.TerminalSize
	done chan struct{}
}

func (w *window) Next() *remotecommand.TerminalSize {
	if s := w.size; s != nil {
		w.size = nil
		return s
	}
	<-w.done
	return nil
}

// TestCase34ShortCommands ends with the command although the client keeps its input open, and
// knows the terminal's size from its start.
func TestCase34ShortCommands(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("short")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("short", "sleep", "1000"))
	for _, tty := range []bool{false, true} {
		for _, stdin := range []bool{false, true} {
			for range 10 {
				if got, err := n.execStream(ctr, tty, stdin, "sh", "-c", "echo hi; exit 3"); strings.TrimSpace(got) != "hi" || err == nil || !strings.Contains(err.Error(), "exit code 3") {
					t.Fatalf("tty %v, stdin %v: %q, %v", tty, stdin, got, err)
				}
			}
		}
	}
	if got, err := n.execStream(ctr, true, true, "stty", "size"); strings.TrimSpace(got) != "40 120" || err != nil {
		t.Errorf("the window is %q, %v", got, err)
	}
	n.remove(pod)
	n.same()
}

// execStream runs a command as kubectl does, with an input that stays open.
func (n *node) execStream(ctr string, tty, stdin bool, command ...string) (string, error) {
	n.t.Helper()
	r, err := n.client.Exec(n.t.Context(), &cri.ExecRequest{ContainerId: ctr, Cmd: command, Tty: tty, Stdin: stdin, Stdout: true})
	must(n.t, err)
	var out bytes.Buffer
	o := remotecommand.StreamOptions{Stdout: &out, Tty: tty}
	if stdin {
		in, w := io.Pipe()
		defer func() { _ = w.Close() }()
		o.Stdin = in
	}
	if tty {
		w := &window{size: &remotecommand.TerminalSize{Width: 120, Height: 40}, done: make(chan struct{})}
		defer close(w.done)
		o.TerminalSizeQueue = w
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	err = stream(ctx, r.GetUrl(), o)
	return out.String(), err
}

// TestCase36PortForward reaches servers of all families in a pod and on the node, through one
// session; a port that nobody listens at is an error.
func TestCase36PortForward(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("served")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sh", "-c", "httpd -p 127.0.0.1:81 -h /www; httpd -p '[::1]:82' -h /www; httpd -p 0.0.0.0:83 -h /www; httpd -p '[::]:84' -h /www; touch /up; sleep 1000"))
	waitFor(t, "the servers", func() bool {
		r, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"test", "-e", "/up"}})
		must(t, err)
		return r.GetExitCode() == 0
	})
	for _, p := range n.forward(pod, "0:81", "0:82", "0:83", "0:84", "0:99") {
		text, err := get(fmt.Sprintf("http://127.0.0.1:%d/index.html", p.Local))
		if p.Remote == 99 {
			if err == nil {
				t.Errorf("a port that nobody listens at says %q", text)
			}
		} else if err != nil || !strings.Contains(text, "hello") {
			t.Errorf("port %d: %q, %v", p.Remote, text, err)
		}
	}
	n.remove(pod)

	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	s := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "node") })}
	go func() { _ = s.Serve(l) }()
	defer func() { _ = s.Close() }()
	pod = n.run(hostNetwork(n.pod("node")))
	forwarded := n.forward(pod, fmt.Sprintf("0:%d", l.Addr().(*net.TCPAddr).Port))
	if text, err := get(fmt.Sprintf("http://127.0.0.1:%d/", forwarded[0].Local)); err != nil || text != "node" {
		t.Errorf("a pod with the node's network answers %q, %v", text, err)
	}
	n.remove(pod)
	n.same()
}

// forward opens a session; it ends with the test.
func (n *node) forward(pod string, ports ...string) []portforward.ForwardedPort {
	n.t.Helper()
	r, err := n.client.PortForward(n.t.Context(), &cri.PortForwardRequest{PodSandboxId: pod})
	must(n.t, err)
	u, err := url.Parse(r.GetUrl())
	must(n.t, err)
	trip, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
	must(n.t, err)
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: trip}, http.MethodPost, u), ports, stop, ready, io.Discard, io.Discard)
	must(n.t, err)
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	n.t.Cleanup(func() { close(stop); <-done })
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		n.t.Fatalf("the session ended at once: %v", err)
	case <-time.After(patience):
		n.t.Fatal("no session")
	}
	out, err := f.GetPorts()
	must(n.t, err)
	return out
}

func get(address string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(address)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Body.Close() }()
	raw, err := io.ReadAll(r.Body)
	return string(raw), err
}

// TestCase35SilentStdin is the container without stdin, and one whose only client never writes.
func TestCase35SilentStdin(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("cat")
	pod := n.run(cfg)
	for once, want := range map[bool]cri.ContainerState{false: cri.ContainerState_CONTAINER_RUNNING, true: cri.ContainerState_CONTAINER_EXITED} {
		c := n.ctr("c", "cat")
		c.Stdin, c.StdinOnce = true, once
		id := n.started(pod, cfg, c)
		r, err := n.client.Attach(t.Context(), &cri.AttachRequest{ContainerId: id, Stdin: true, Stdout: true})
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_ = stream(ctx, r.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: io.Discard})
		cancel()
		if want == cri.ContainerState_CONTAINER_EXITED {
			n.exited(id)
		} else if s := n.status(id); s.GetState() != want {
			t.Errorf("stdin only: the container is %v", s.GetState())
		}
		n.removeContainer(id)
		must(t, os.Remove(cfg.GetLogDirectory()+"/c.log"))
	}
	n.remove(pod)
	n.same()
}
