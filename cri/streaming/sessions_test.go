// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	tasks "github.com/sandflow-cri/sandflow/steps/runtime"
)

// Case 34: a session ends with its process, although the client's stdin stays open.
func TestExecEndsWithItsProcess(t *testing.T) {
	s, _ := serve(t, Config{})
	for transport := range transports {
		for _, tty := range []bool{false, true} {
			for _, stdin := range []bool{false, true} {
				for range 20 {
					var out bytes.Buffer
					o := remotecommand.StreamOptions{Tty: tty, Stdout: &out}
					if stdin {
						o.Stdin = held(t)
					}
					if tty {
						o.TerminalSizeQueue = terminal(t.Context())
					}
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					err := run(ctx, s, transport, &cri.ExecRequest{Cmd: []string{"echo", "hi"}}, o)
					cancel()
					if got := strings.TrimSpace(out.String()); err != nil || got != "hi" {
						t.Fatalf("%s tty=%t stdin=%t: %q, %v", transport, tty, stdin, got, err)
					}
				}
			}
		}
	}
}

func TestExecStreamsAndCodes(t *testing.T) {
	s, _ := serve(t, Config{})
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			var out, errOut bytes.Buffer
			err := run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"sh", "-c", "read a; echo $a; echo e >&2; exit 3"}},
				remotecommand.StreamOptions{Stdin: strings.NewReader("word\n"), Stdout: &out, Stderr: &errOut})
			exit, ok := errors.AsType[utilexec.CodeExitError](err)
			if !ok || exit.Code != 3 || out.String() != "word\n" || errOut.String() != "e\n" {
				t.Errorf("%q, %q, %v", out.String(), errOut.String(), err)
			}
			err = run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"/no/such/program"}},
				remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil || errors.As(err, &exit) || !strings.Contains(err.Error(), "no such file") {
				t.Errorf("a missing program gives %v", err)
			}
		})
	}
}

// The client's end of stdin reaches the process; version 4 over WebSocket has no way to say it.
func TestExecEndOfInput(t *testing.T) {
	s, _ := serve(t, Config{})
	for _, transport := range []string{"SPDY", "WebSocket"} {
		var out bytes.Buffer
		err := run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"wc", "-c"}},
			remotecommand.StreamOptions{Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: &out})
		if got := strings.TrimSpace(out.String()); err != nil || got != "1048576" {
			t.Errorf("%s: %q, %v", transport, got, err)
		}
	}
}

// slow reads at a fraction of what the process writes.
type slow struct {
	n    int
	tail []byte
}

func (s *slow) Write(b []byte) (int, error) {
	s.n += len(b)
	s.tail = append(s.tail[:0], b[max(0, len(b)-16):]...)
	time.Sleep(time.Duration(len(b)) * time.Second / (8 << 20))
	return len(b), nil
}

// Case 32: all bytes come before the exit status, however slow the client.
func TestExecSlowReader(t *testing.T) {
	s, _ := serve(t, Config{})
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			out := &slow{}
			err := run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"seq", "1", "2000000"}},
				remotecommand.StreamOptions{Stdout: out, Stdin: held(t)})
			if err != nil || out.n != 14888896 || !strings.HasSuffix(string(out.tail), "\n2000000\n") {
				t.Errorf("%d bytes, the end is %q, %v", out.n, out.tail, err)
			}
			out = &slow{}
			err = run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"sh", "-c", "head -c 5000000 /dev/zero; exit 3"}},
				remotecommand.StreamOptions{Stdout: out})
			if exit, ok := errors.AsType[utilexec.CodeExitError](err); !ok || exit.Code != 3 || out.n != 5000000 {
				t.Errorf("%d bytes, %v", out.n, err)
			}
		})
	}
}

// Case 34: the process never sees another size than the first that the client set.
func TestExecTerminalSize(t *testing.T) {
	s, _ := serve(t, Config{})
	for transport := range transports {
		for range 20 {
			var out bytes.Buffer
			err := run(t.Context(), s, transport, &cri.ExecRequest{Cmd: []string{"stty", "size"}},
				remotecommand.StreamOptions{Tty: true, Stdin: held(t), Stdout: &out, TerminalSizeQueue: terminal(t.Context())})
			if got := strings.TrimSpace(out.String()); err != nil || got != "40 120" {
				t.Fatalf("%s: %q, %v", transport, got, err)
			}
		}
	}
}

// A URL works once, for the kind of session it was made for.
func TestTokenWorksOnce(t *testing.T) {
	s, n := serve(t, Config{})
	n.attach = func(context.Context, tasks.AttachRequest) error { return nil }
	reply, err := s.GetExec(&cri.ExecRequest{ContainerId: "running", Cmd: []string{"true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		client, err := transports["SPDY"](reply.GetUrl())
		if err != nil {
			t.Fatal(err)
		}
		err = client.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
		if (err == nil) != want {
			t.Errorf("use %d: %v", i+1, err)
		}
	}
	attach, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{strings.Replace(attach.GetUrl(), "/attach/", "/exec/", 1), attach.GetUrl()} {
		res, err := http.Get(u) //nolint:gosec // a URL on loopback
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("%s answers %s", u, res.Status)
		}
	}
}

func TestTokensExpireAndAreBounded(t *testing.T) {
	now := time.Now()
	tk := newTokens(time.Minute, 2)
	tk.now = func() time.Time { return now }
	first, err := tk.issue("a")
	if err != nil {
		t.Fatal(err)
	}
	second, err := tk.issue("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tk.issue("c"); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a third one of two: %v", err)
	}
	if got, ok := tk.redeem(second); !ok || got != "b" {
		t.Errorf("redeemed %v", got)
	}
	now = now.Add(time.Minute)
	if _, ok := tk.redeem(first); ok {
		t.Error("redeemed an expired token")
	}
	if _, err := tk.issue("d"); err != nil || len(tk.waiting) != 1 {
		t.Errorf("%d tokens wait, %v", len(tk.waiting), err)
	}
}

// When the client hangs up, what it ran is ended.
func TestExecEndsWithItsClient(t *testing.T) {
	s, n := serve(t, Config{})
	for transport := range transports {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			ended <- run(ctx, s, transport, &cri.ExecRequest{Cmd: []string{"sh", "-c", "echo up; sleep 1000; true"}},
				remotecommand.StreamOptions{Stdout: w})
		}()
		if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
		cancel()
		_ = r.Close()
		if err := <-ended; err == nil {
			t.Errorf("%s: the session ended by itself", transport)
		}
		n.mu.Lock()
		pid := n.pids[len(n.pids)-1]
		n.mu.Unlock()
		gone(t, pid)
	}
}

// gone waits until no process of the group is left.
func gone(t *testing.T, group int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if errors.Is(syscall.Kill(-group, 0), os.ErrProcessDone) || errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
			return
		}
	}
	t.Fatalf("process group %d is still there", group)
}

// Case 33: sessions that fail or are cut leave nothing behind.
func TestSessionsDoNotLeak(t *testing.T) {
	s, n := serve(t, Config{})
	n.stdin = true
	attached := make(chan struct{})
	n.attach = func(ctx context.Context, r tasks.AttachRequest) error {
		attached <- struct{}{}
		if r.Stdin != nil {
			go func() { _, _ = io.Copy(io.Discard, r.Stdin) }()
		}
		<-ctx.Done()
		return ctx.Err()
	}
	before := count(t)
	for transport := range transports {
		for range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			err := run(ctx, s, transport, &cri.ExecRequest{Cmd: []string{"/no/such/program"}},
				remotecommand.StreamOptions{Tty: true, Stdout: io.Discard, Stdin: strings.NewReader(""), TerminalSizeQueue: terminal(ctx)})
			cancel()
			if err == nil {
				t.Fatal("a missing program ran")
			}
		}
		for i := range 200 {
			cutAttach(t, s, transport, i%2 == 0, attached)
		}
	}
	settle(t, before)
}

// cutAttach attaches to a silent container and hangs up.
func cutAttach(t *testing.T, s *Server, transport string, stdin bool, attached <-chan struct{}) {
	t.Helper()
	reply, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdout: true, Stdin: stdin})
	if err != nil {
		t.Fatal(err)
	}
	client, err := transports[transport](reply.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-attached
		cancel()
	}()
	o := remotecommand.StreamOptions{Stdout: io.Discard}
	if stdin {
		r, w := io.Pipe()
		defer func() { _ = w.Close() }()
		o.Stdin = r
	}
	if err := client.StreamWithContext(ctx, o); err == nil {
		t.Fatal("attaching to a silent container ended by itself")
	}
}

// A client that goes at any moment, also in the middle of opening its streams.
func TestClientsThatGoEarly(t *testing.T) {
	s, n := serve(t, Config{CreationTimeout: time.Second})
	n.attach = func(ctx context.Context, _ tasks.AttachRequest) error {
		<-ctx.Done()
		return ctx.Err()
	}
	network := newWire(t)
	before := count(t)
	for i := range 200 {
		reply, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		client, err := transports["SPDY"](network.through(t, reply.GetUrl()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		err = client.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: io.Discard})
		cancel()
		if err == nil {
			t.Fatal("attaching to a silent container ended by itself")
		}
	}
	network.cut() // client-go may leave a connection open that it gave up
	// Its descriptors stay too, so those of the server are counted by themselves.
	soon(t, "all connections to be closed", func() bool { return s.listener.open() == 0 })
	soon(t, "all goroutines to end", func() bool { return count(t).goroutines <= before.goroutines+3 })
}

// soon fails the test unless cond comes true soon.
func soon(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("waited too long for %s\n%s", what, strings.Join(goroutines(), "\n\n"))
}

func TestAttach(t *testing.T) {
	s, n := serve(t, Config{})
	n.stdin = true
	n.attach = func(_ context.Context, r tasks.AttachRequest) error {
		_, err := io.Copy(r.Stdout, r.Stdin)
		return err
	}
	for _, transport := range []string{"SPDY", "WebSocket"} {
		reply, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		client, err := transports[transport](reply.GetUrl())
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = client.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("word"), Stdout: &out})
		if err != nil || out.String() != "word" {
			t.Errorf("%s: %q, %v", transport, out.String(), err)
		}
	}
}

func TestLimitPerContainer(t *testing.T) {
	s, _ := serve(t, Config{MaxExecPerContainer: 1})
	leave, err := s.limits.enter("running")
	if err != nil {
		t.Fatal(err)
	}
	req := &cri.ExecSyncRequest{ContainerId: "running", Cmd: []string{"true"}}
	if _, err := s.ExecSync(t.Context(), req); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a second one of one: %v", err)
	}
	leave()
	if _, err := s.ExecSync(t.Context(), req); err != nil {
		t.Error(err)
	}
	if len(s.limits.inUse) != 0 {
		t.Errorf("places in use: %v", s.limits.inUse)
	}
}

// Close cuts what is going on and waits for it.
func TestCloseCutsSessions(t *testing.T) {
	s, n := serve(t, Config{})
	attached := make(chan struct{})
	n.attach = func(ctx context.Context, _ tasks.AttachRequest) error {
		close(attached)
		<-ctx.Done()
		return ctx.Err()
	}
	reply, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	client, err := transports["SPDY"](reply.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- client.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
	}()
	<-attached
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("the client of a cut session got: %v", <-ended)
	if _, err := s.GetAttach(&cri.AttachRequest{ContainerId: "running", Stdout: true}); !errdefs.IsUnavailable(err) {
		t.Errorf("a URL of a closed server: %v", err)
	}
}
