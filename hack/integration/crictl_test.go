// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// crictl makes a command of crictl against the daemon.
func (n *node) crictl(ctx context.Context, args ...string) *exec.Cmd {
	n.t.Helper()
	file := filepath.Join(n.lab.Dir, "crictl.yaml")
	must(n.t, os.WriteFile(file, fmt.Appendf(nil, "runtime-endpoint: unix://%[1]s\nimage-endpoint: unix://%[1]s\n", n.daemon.Socket), 0o600))
	return exec.CommandContext(ctx, n.lab.Bin("crictl"), append([]string{"--config=" + file}, args...)...)
}

// TestCrictlTransports runs exec, attach and port-forward with crictl, over SPDY and over
// WebSocket.
func TestCrictlTransports(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("spoken-to")
	pod := n.run(cfg)
	server := n.started(pod, cfg, n.ctr("server", "sh", "-c", "seq 1 50000 > /tmp/page; exec httpd -f -p 8080 -h /tmp"))
	for _, transport := range []string{"spdy", "websocket"} {
		t.Run(transport, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			n.crictlExec(ctx, t, transport, server)
			n.crictlAttach(ctx, t, transport, pod)
			n.crictlForward(ctx, t, transport, pod)
		})
	}
	n.remove(pod)
	n.same()
}

func (n *node) crictlExec(ctx context.Context, t *testing.T, transport, ctr string) {
	cmd := n.crictl(ctx, "exec", "-r", transport, "-i", ctr, "sh", "-c", "cat; echo to-stderr >&2; exit 7")
	cmd.Stdin = strings.NewReader("typed")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if string(out) != "typed" || !strings.Contains(errs.String(), "to-stderr") || err == nil {
		t.Errorf("exec: %q, %q, %v", out, errs.String(), err)
	}
}

func (n *node) crictlAttach(ctx context.Context, t *testing.T, transport, pod string) {
	cfg := n.pod("spoken-to")
	once := n.ctr("cat-"+transport, "cat")
	once.Stdin, once.StdinOnce = true, true
	ctr := n.started(pod, cfg, once)
	cmd := n.crictl(ctx, "attach", "-r", transport, "-i", ctr)
	cmd.Stdin = strings.NewReader("attached\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "attached") {
		t.Errorf("attach: %q, %v", out, err)
	}
	if s := n.exited(ctr); s.GetExitCode() != 0 {
		t.Errorf("attach: the container's exit code is %d", s.GetExitCode())
	}
}

var forwarding = regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)

func (n *node) crictlForward(ctx context.Context, t *testing.T, transport, pod string) {
	cmd := n.crictl(ctx, "port-forward", "-r", transport, pod, "0:8080")
	out, err := cmd.StdoutPipe()
	must(t, err)
	var errs strings.Builder
	cmd.Stderr = &errs
	must(t, cmd.Start())
	defer func() {
		must(t, cmd.Process.Signal(syscall.SIGINT))
		if err := cmd.Wait(); err != nil {
			t.Errorf("port-forward: %v, %s", err, errs.String())
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	found := forwarding.FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("port-forward says %q, %v, %s", line, err, errs.String())
	}
	for range 3 {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+found[1])
		must(t, err)
		_, err = io.WriteString(c, "GET /page HTTP/1.0\r\n\r\n")
		must(t, err)
		page, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(page), "HTTP/1.") || !strings.HasSuffix(string(page), "\n49999\n50000\n") {
			t.Errorf("port-forward: the page is %d bytes, %v", len(page), err)
		}
		_ = c.Close()
	}
}
