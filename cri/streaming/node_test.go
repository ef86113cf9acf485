// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"github.com/containerd/errdefs"
	"github.com/go-logr/logr"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	tasks "github.com/sandflow-cri/sandflow/steps/runtime"
)

// node is a Resolver and Tasks whose containers are processes of this machine.
type node struct {
	tasks.Tasks // of which sessions use Exec and Attach only
	bundle      string
	tty, stdin  bool
	netns       map[string]string // of pods
	attach      func(ctx context.Context, r tasks.AttachRequest) error

	mu   sync.Mutex
	pids []int
}

func (n *node) ContainerTasks(_ context.Context, id string) (Target, error) {
	switch id {
	case "running":
		return Target{ID: id, Tasks: n, Bundle: n.bundle, TTY: n.tty, Stdin: n.stdin}, nil
	case "exited":
		return Target{}, fmt.Errorf("container %s is not running: %w", id, errdefs.ErrFailedPrecondition)
	}
	return Target{}, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

func (n *node) PodNetNS(_ context.Context, pod string) (string, error) {
	path, ok := n.netns[pod]
	if !ok {
		return "", fmt.Errorf("pod %s: %w", pod, errdefs.ErrNotFound)
	}
	return path, nil
}

func (n *node) Attach(ctx context.Context, _ string, r tasks.AttachRequest) error {
	return n.attach(ctx, r)
}

func (n *node) Exec(ctx context.Context, r tasks.ExecRequest) (int, error) {
	cmd := exec.Command(r.Process.Args[0], r.Process.Args[1:]...)
	cmd.Env = r.Process.Env
	cmd.WaitDelay = time.Second
	var copied, resized sync.WaitGroup
	resizing, stopResizing := context.WithCancel(ctx)
	defer stopResizing()
	stdin, err := n.stdio(resizing, cmd, r, &copied, &resized)
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		_ = stdin.Close()
		copied.Wait()
		return 0, err
	}
	n.mu.Lock()
	n.pids = append(n.pids, cmd.Process.Pid)
	n.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer stop()
	if s, ok := cmd.Stdin.(*os.File); ok {
		_ = s.Close() // our copy of the terminal
	}
	if r.Stdin != nil {
		go func() { _, _ = io.Copy(stdin, r.Stdin); closeUnlessTTY(stdin, r) }()
	} else if !r.Process.Terminal {
		_ = stdin.Close()
	}
	err = cmd.Wait()
	copied.Wait()
	stopResizing()
	resized.Wait()
	_ = stdin.Close()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func closeUnlessTTY(w io.Closer, r tasks.ExecRequest) {
	if !r.Process.Terminal {
		_ = w.Close()
	}
}

// stdio connects cmd to pipes or a terminal; it returns where its input goes.
func (n *node) stdio(ctx context.Context, cmd *exec.Cmd, r tasks.ExecRequest,
	copied, resized *sync.WaitGroup,
) (io.WriteCloser, error) {
	if !r.Process.Terminal {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Stdout, cmd.Stderr = r.Stdout, r.Stderr
		return cmd.StdinPipe()
	}
	pty, path, err := console.NewPty()
	if err != nil {
		return nil, err
	}
	if box := r.Process.ConsoleSize; box != nil {
		if err := pty.Resize(console.WinSize{Height: uint16(box.Height), Width: uint16(box.Width)}); err != nil {
			return nil, err
		}
	}
	tty, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(cmd.Path); err != nil {
		return nil, errors.Join(err, tty.Close(), pty.Close())
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	copied.Go(func() { _, _ = io.Copy(r.Stdout, pty) })
	resized.Go(func() {
		for {
			select {
			case size, ok := <-r.Resize:
				if !ok {
					return
				}
				_ = pty.Resize(console.WinSize{Height: size.Height, Width: size.Width})
			case <-ctx.Done():
				return
			}
		}
	})
	return pty, nil
}

// serve starts a server over a node.
func serve(t *testing.T, c Config) (*Server, *node) {
	t.Helper()
	n := &node{bundle: t.TempDir(), netns: map[string]string{"host": ""}}
	spec, err := json.Marshal(specs.Spec{Process: &specs.Process{Cwd: "/", Env: os.Environ()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.bundle, "config.json"), spec, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(c, n)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, n
}

// transports are the clients that exist for exec and attach.
var transports = map[string]func(u string) (remotecommand.Executor, error){
	"SPDY": func(u string) (remotecommand.Executor, error) {
		parsed, err := url.Parse(u)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", parsed)
	},
	"WebSocket": func(u string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(&rest.Config{}, "GET", u)
	},
	"WebSocketV4": func(u string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, "GET", u, "v4.channel.k8s.io")
	},
}

// run does an exec with a client of the transport.
func run(ctx context.Context, s *Server, transport string, req *cri.ExecRequest, o remotecommand.StreamOptions) error {
	req.ContainerId = "running"
	req.Tty, req.Stdin, req.Stdout, req.Stderr = o.Tty, o.Stdin != nil, o.Stdout != nil, o.Stderr != nil
	reply, err := s.GetExec(req)
	if err != nil {
		return err
	}
	client, err := transports[transport](reply.GetUrl())
	if err != nil {
		return err
	}
	return client.StreamWithContext(ctx, o)
}

// counts of what leaks.
type counts struct{ goroutines, fds int }

func count(t *testing.T) counts {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, g := range goroutines() {
		// What a client-go client leaves behind when it is cancelled is not ours.
		if !strings.Contains(g, "k8s.io/client-go/") && !strings.Contains(g, "spdystream.(*Connection).shutdown") {
			n++
		}
	}
	return counts{n, len(fds)}
}

// goroutines are the stacks of all of them.
func goroutines() []string {
	buf := make([]byte, 1<<22)
	return strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
}

// settle waits until no more is held than before.
func settle(t *testing.T, before counts) {
	t.Helper()
	const slack = 3 // of the Go runtime and of idle clients
	var now counts
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		now = count(t)
		if now.goroutines <= before.goroutines+slack && now.fds <= before.fds+slack {
			return
		}
	}
	t.Fatalf("leak: %+v before, %+v after\n%s", before, now, strings.Join(goroutines(), "\n\n"))
}

// held is an input that is open and silent until its test ends.
func held(t *testing.T) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	return r
}

func TestMain(m *testing.M) {
	// Hundreds of sessions fail on purpose, and both ends log each.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// fixed is a terminal of one size.
type fixed struct {
	size *remotecommand.TerminalSize
	ctx  context.Context //nolint:containedctx // ends Next
}

// terminal is 40 lines by 120 columns until ctx ends.
func terminal(ctx context.Context) remotecommand.TerminalSizeQueue {
	return &fixed{&remotecommand.TerminalSize{Height: 40, Width: 120}, ctx}
}

func (f *fixed) Next() *remotecommand.TerminalSize {
	size := f.size
	f.size = nil
	if size == nil {
		<-f.ctx.Done()
	}
	return size
}
