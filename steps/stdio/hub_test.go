// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

// container is the other end of a hub.
type container struct {
	hub            *Hub
	stdout, stderr *os.File // write ends
	stdin          *os.File // read end
	log            string
}

func newContainer(t *testing.T, once bool) *container {
	t.Helper()
	c := &container{log: filepath.Join(t.TempDir(), "0.log")}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
		return r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	inR, inW := pipe()
	h, err := New(Options{LogPath: c.log, Stdin: inW, StdinOnce: once})
	if err != nil {
		t.Fatal(err)
	}
	c.hub, c.stdout, c.stderr, c.stdin = h, outW, errW, inR
	h.Start(outR, errR)
	return c
}

func (c *container) end() {
	_ = c.stdout.Close()
	_ = c.stderr.Close()
	<-c.hub.Drained()
}

// attached waits until n clients are attached.
func (c *container) attached(n int) {
	for {
		c.hub.mu.Lock()
		have := len(c.hub.clients)
		c.hub.mu.Unlock()
		if have == n {
			return
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func TestHubLogsAndBroadcasts(t *testing.T) {
	c := newContainer(t, false)
	var outs, errs [2]safeBuffer
	var wg sync.WaitGroup
	for i := range outs {
		wg.Go(func() {
			if err := c.hub.Attach(t.Context(), Attachment{Stdout: &outs[i], Stderr: &errs[i]}); err != nil {
				t.Error(err)
			}
		})
	}
	c.attached(2)
	text := strings.Repeat("0123456789\n", 50000)
	_, _ = io.WriteString(c.stderr, "oops")
	_, _ = io.WriteString(c.stdout, text)
	c.end()
	wg.Wait()
	for i := range outs {
		if outs[i].b.String() != text || errs[i].b.String() != "oops" {
			t.Errorf("client %d got %d bytes of %d and %q", i, outs[i].b.Len(), len(text), errs[i].b.String())
		}
	}
	got := read(t, c.log)
	if strings.Count(got, " stdout F 0123456789\n") != 50000 || !strings.Contains(got, " stderr P oops\n") {
		t.Error("log is not complete")
	}
	if err := c.hub.Attach(t.Context(), Attachment{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("attach after the end: %v", err)
	}
	if err := c.hub.Reopen(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reopen after the end: %v", err)
	}
}

type stuck struct{ free chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.free; return len(p), nil }

func TestStuckClientIsLetGo(t *testing.T) {
	c := newContainer(t, false)
	w := stuck{make(chan struct{})}
	defer close(w.free)
	result := make(chan error, 1)
	go func() { result <- c.hub.Attach(t.Context(), Attachment{Stdout: w}) }()
	c.attached(1)
	go func() { _, _ = c.stdout.Write(make([]byte, 10<<20)); c.end() }()
	if err := <-result; !errors.Is(err, ErrSlowClient) {
		t.Errorf("attach: %v", err)
	}
	<-c.hub.Drained() // the container was not blocked
}

func TestClientThatLeaves(t *testing.T) { // case 33
	c := newContainer(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- c.hub.Attach(ctx, Attachment{Stdout: io.Discard}) }()
	c.attached(1)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("attach: %v", err)
	}
	c.attached(0)
	c.end()
}

func TestStdin(t *testing.T) { // case 35
	for _, once := range []bool{false, true} {
		c := newContainer(t, once)
		for _, word := range []string{"one", "two"} {
			go func() { _ = c.hub.Attach(t.Context(), Attachment{Stdin: strings.NewReader(word)}) }()
			buf := make([]byte, 3)
			n, err := io.ReadFull(c.stdin, buf)
			if once && word == "two" {
				if !errors.Is(err, io.EOF) {
					t.Errorf("second client of a stdin for once: %q, %v", buf[:n], err)
				}
			} else if string(buf) != word {
				t.Errorf("container reads %q, %v, want %q", buf[:n], err, word)
			}
			if once && word == "one" { // closed when that client's input ends
				if _, err := c.stdin.Read(buf); !errors.Is(err, io.EOF) {
					t.Errorf("stdin for once is not closed: %v", err)
				}
			}
		}
		c.end()
	}
}

func TestContainerThatDoesNotRead(t *testing.T) {
	c := newContainer(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		c.hub.stdin.feed(ctx, bytes.NewReader(make([]byte, 1<<20)))
	}()
	cancel()
	<-fed // though the pipe is full
	go func() { _ = c.hub.Attach(t.Context(), Attachment{Stdin: strings.NewReader("end")}) }()
	var got []byte
	for !bytes.HasSuffix(got, []byte("end")) {
		buf := make([]byte, 4096)
		n, err := c.stdin.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	c.end()
}

func TestAbandon(t *testing.T) {
	c := newContainer(t, false)
	_, _ = io.WriteString(c.stdout, "begun")
	if err := c.hub.Abandon(); err != nil {
		t.Fatal(err)
	}
	<-c.hub.Drained()
}

func TestWire(t *testing.T) {
	var b bytes.Buffer
	c := NewConn(&b)
	if _, err := c.Writer(KindStdout).Write(make([]byte, 3*DataFrame+1)); err != nil {
		t.Fatal(err)
	}
	if err := c.SendJSON(KindResult, Result{Exit: 3}); err != nil {
		t.Fatal(err)
	}
	total := 0
	for {
		kind, p, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if kind == KindResult {
			break
		}
		total += len(p)
	}
	if total != 3*DataFrame+1 {
		t.Errorf("%d bytes arrived", total)
	}
	if _, _, err := c.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	b.Write([]byte{byte(KindStdout), 0, 0, 0, 9, 1})
	if _, _, err := c.Receive(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a torn frame: %v", err)
	}
	b.Reset()
	b.Write([]byte{byte(KindStdout), 255, 255, 255, 255})
	if _, _, err := c.Receive(); err == nil {
		t.Error("a frame of 4 GiB is accepted")
	}
}
