// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

// buffer tells when it holds a text.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	news chan struct{}
}

func newBuffer() *buffer { return &buffer{news: make(chan struct{}, 1)} }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.b.Write(p)
	select {
	case b.news <- struct{}{}:
	default:
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) await(t *testing.T, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for !strings.Contains(b.String(), want) {
		select {
		case <-b.news:
		case <-limit:
			t.Fatalf("%q does not come, only %q", want, b.String())
		}
	}
}

func TestAttachAndStdin(t *testing.T) { // case 35
	l := newLab(t, nil)
	id := l.run(nil, CreateRequest{Stdin: true}, "cat")
	for _, word := range []string{"first\n", "second\n"} {
		out := newBuffer()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		r, w := io.Pipe()
		go func() { done <- l.tasks.Attach(ctx, id, AttachRequest{Stdin: r, Stdout: out}) }()
		_, _ = io.WriteString(w, word)
		out.await(t, word)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("attach: %v", err)
		}
		_ = w.Close()
	}
	l.delete(id)
	if got := l.logged(id)["stdout"]; got != "first\nsecond\n" {
		t.Errorf("log %q", got)
	}
	once := l.run(nil, CreateRequest{Stdin: true, StdinOnce: true}, "cat")
	out := newBuffer()
	if err := l.tasks.Attach(t.Context(), once, AttachRequest{Stdin: strings.NewReader("word\n"), Stdout: out}); err != nil {
		t.Errorf("attach: %v", err)
	}
	if e := l.wait(once); e.Code != 0 || out.String() != "word\n" {
		t.Errorf("stdin for once: exit %+v, %q", e, out)
	}
	if err := l.tasks.Attach(t.Context(), once, AttachRequest{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("attach after the end: %v", err)
	}
	if e := l.wait(l.run(nil, CreateRequest{}, "cat")); e.Code != 0 {
		t.Errorf("without stdin: exit %+v", e)
	}
}

func TestTerminal(t *testing.T) { // case 34
	l := newLab(t, nil)
	terminal := func(s *specs.Spec) { s.Process.Terminal = true }
	id := l.run(terminal, CreateRequest{Terminal: true, Stdin: true, StdinOnce: true}, "sh", "-c", "read x; stty size; read y; echo got $y")
	out := newBuffer()
	sizes := make(chan Size, 1)
	sizes <- Size{Width: 120, Height: 40}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- l.tasks.Attach(t.Context(), id, AttachRequest{Stdin: r, Stdout: out, Resize: sizes}) }()
	for len(sizes) > 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // the size is on its way, without an answer
	_, _ = io.WriteString(w, "\n")
	out.await(t, "40 120")
	_, _ = io.WriteString(w, "it\n")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if e := l.wait(id); e.Code != 0 || !strings.Contains(out.String(), "got it") {
		t.Errorf("exit %+v, %q", e, out)
	}
	long := l.script("sleep 1000")
	p := process("sh", "-c", "stty size")
	p.Terminal = true
	sizes <- Size{Width: 120, Height: 40}
	hang, _ := io.Pipe() // a client that keeps its stdin open
	out = newBuffer()
	code, err := l.tasks.Exec(t.Context(), ExecRequest{ID: long, ExecID: "tty", Process: p, Stdin: hang, Stdout: out, Resize: sizes})
	if err != nil || code != 0 || out.String() != "40 120\r\n" {
		t.Errorf("terminal exec: %q, %d, %v", out, code, err)
	}
	out = newBuffer()
	code, err = l.tasks.Exec(t.Context(), ExecRequest{ID: long, ExecID: "early", Process: p, Stdin: strings.NewReader(""), Stdout: out})
	if err != nil || code != 0 || !strings.HasSuffix(out.String(), "\r\n") {
		t.Errorf("terminal exec whose stdin ends at once: %q, %d, %v", out, code, err)
	}
}

func TestExecStdin(t *testing.T) { // cases 32 and 34
	l := newLab(t, nil)
	id := l.script("sleep 1000")
	text := strings.Repeat("0123456789abcdef", 1<<16)
	out := newBuffer()
	code, err := l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: "cat", Process: process("cat"), Stdin: strings.NewReader(text), Stdout: out})
	if err != nil || code != 0 || out.String() != text {
		t.Errorf("cat: %d bytes of %d, %d, %v", len(out.String()), len(text), code, err)
	}
	for i := range 5 {
		hang, _ := io.Pipe()
		out := newBuffer()
		code, err := l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: fmt.Sprint("hi", i), Process: process("echo", "hi"), Stdin: hang, Stdout: out})
		if err != nil || code != 0 || out.String() != "hi\n" {
			t.Errorf("exec with stdin held open: %q, %d, %v", out, code, err)
		}
	}
	code, err = l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: "deaf", Process: process("true"), Stdin: strings.NewReader(text)})
	if err != nil || code != 0 {
		t.Errorf("exec that does not read its stdin: %d, %v", code, err)
	}
}

func TestClientThatLeavesAnExec(t *testing.T) { // case 33
	l := newLab(t, nil)
	id := l.script("sleep 1000")
	fds := func() (n int) {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", l.shim.PID))
		for _, link := range links {
			// Go keeps a pidfd of each command, until the next collection of garbage at the latest.
			if to, err := os.Readlink(link); err == nil && to != "anon_inode:[pidfd]" {
				n++
			}
		}
		return n
	}
	if _, _, err := l.exec(t.Context(), id, "warm", "true"); err != nil {
		t.Fatal(err)
	}
	before := fds()
	for i := range 10 {
		if _, _, err := l.exec(t.Context(), id, fmt.Sprint("bad", i), "exec /no/such"); err != nil {
			t.Error(err)
		}
		_, err := l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: fmt.Sprint("missing", i), Process: process("/no/such")})
		if err == nil {
			t.Error("a missing program was run")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_ = l.tasks.Attach(ctx, id, AttachRequest{Stdout: io.Discard})
		cancel()
	}
	for range 200 {
		if fds() <= before {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	links, _ := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", l.shim.PID)).Output()
	t.Errorf("shim had %d open files, has %d:\n%s", before, fds(), links)
}

func TestRotationUnderLoad(t *testing.T) { // case 23
	l := newLab(t, nil)
	id := l.script("seq 1 200000")
	path := l.logPath(id)
	rotated := 0
	for range 20 {
		if os.Rename(path, fmt.Sprintf("%s.%03d", path, rotated)) == nil {
			rotated++
		}
		if err := l.tasks.ReopenLog(t.Context(), id); err != nil {
			break // the container has ended
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.wait(id)
	var all []byte
	for i := range rotated {
		b, err := os.ReadFile(fmt.Sprintf("%s.%03d", path, i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	last, _ := os.ReadFile(path)
	n := 0
	for rec := range strings.Lines(string(append(all, last...))) {
		n++
		if !strings.HasSuffix(rec, fmt.Sprintf(" stdout F %d\n", n)) {
			t.Fatalf("record %d is %q, after %d rotations", n, rec, rotated)
		}
	}
	if n != 200000 {
		t.Errorf("%d lines of 200000, after %d rotations", n, rotated)
	}
}

func TestDaemonThatIsAway(t *testing.T) { // cases 13 and 24
	l := newLab(t, nil)
	id := l.script("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; exit 9")
	_ = l.m.Close()
	l.m = NewManager(l.m.cfg)
	var err error
	if l.tasks, err = l.m.Tasks(l.pod); err != nil {
		t.Fatal(err)
	}
	if e := l.wait(id); e.Code != 9 {
		t.Errorf("exit %+v", e)
	}
	if got := l.logged(id)["stdout"]; got != "1\n2\n3\n4\n5\n" {
		t.Errorf("log %q", got)
	}
}

func TestShimMemory(t *testing.T) {
	l := newLab(t, nil)
	id := l.script("sleep 1000")
	if _, _, err := l.exec(t.Context(), id, "e", "true"); err != nil {
		t.Fatal(err)
	}
	rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", l.shim.PID))
	t.Logf("shim with one container:\n%s", rollup)
	runtimetest.Root(t)
}
