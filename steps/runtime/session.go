// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandflow-cri/sandflow/steps/stdio"
)

const (
	// killWait is how long Exec waits, after its context has ended, to be told that all is killed.
	killWait = 5 * time.Second
	// firstSize is how long a terminal's first size is waited for before the process starts.
	firstSize = 50 * time.Millisecond
)

func (t *podTasks) Exec(ctx context.Context, r ExecRequest) (int, error) {
	if r.Process == nil || r.ExecID == "" {
		return 0, fmt.Errorf("exec in container %s: no process or no ID given: %w", r.ID, errdefs.ErrInvalidArgument)
	}
	proc := *r.Process
	if proc.Terminal && r.Resize != nil && proc.ConsoleSize == nil {
		proc.ConsoleSize = firstOf(r.Resize)
	}
	s := session{
		tasks: t, stdin: r.Stdin, stdout: r.Stdout, stderr: r.Stderr, started: r.Started, resize: r.Resize,
		req: stdio.Request{ID: r.ID, ExecID: r.ExecID, Process: &proc},
	}
	res, err := s.run(ctx)
	return int(res.Exit), err
}

func (t *podTasks) Attach(ctx context.Context, id string, r AttachRequest) error {
	s := session{
		tasks: t, stdin: r.Stdin, stdout: r.Stdout, stderr: r.Stderr, resize: r.Resize,
		req: stdio.Request{ID: id},
	}
	_, err := s.run(ctx)
	return err
}

// session is one exec or attach: a connection to the shim's stream socket.
type session struct {
	tasks          *podTasks
	req            stdio.Request
	stdin          io.Reader
	stdout, stderr io.Writer
	resize         <-chan Size
	started        func()

	wire   *stdio.Conn
	window chan struct{} // one token for each frame of stdin that may be sent
}

// run ends with the shim's result, or soon after ctx.
func (s *session) run(ctx context.Context) (stdio.Result, error) {
	conn, err := dialUnix(ctx, s.tasks.pod.Streams)
	if err != nil {
		return stdio.Result{}, err
	}
	defer func() { _ = conn.Close() }()
	s.wire = stdio.NewConn(conn)
	s.window = make(chan struct{}, stdio.StdinWindow)
	for range stdio.StdinWindow {
		s.window <- struct{}{}
	}
	s.req.Stdin, s.req.Stdout, s.req.Stderr = s.stdin != nil, s.stdout != nil, s.stderr != nil
	if err := s.wire.SendJSON(stdio.KindRequest, s.req); err != nil {
		return stdio.Result{}, fmt.Errorf("send request to shim: %w: %w", err, errdefs.ErrUnavailable)
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.stdin != nil {
		go s.sendStdin(running)
	}
	type outcome struct {
		res stdio.Result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		res, err := s.receive(running)
		done <- outcome{res, err}
	}()
	select {
	case o := <-done:
		return o.res, o.err
	case <-ctx.Done():
	}
	// The shim takes the end of our frames as the client's leaving, and answers when all is killed.
	_ = conn.CloseWrite()
	t := time.NewTimer(killWait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
	return stdio.Result{}, ctx.Err()
}

// receive hands out the output until the result comes.
func (s *session) receive(ctx context.Context) (stdio.Result, error) {
	for {
		kind, payload, err := s.wire.Receive()
		if err != nil {
			return stdio.Result{}, fmt.Errorf("shim has gone: %w: %w", err, errdefs.ErrUnavailable)
		}
		switch kind {
		case stdio.KindStarted:
			if s.started != nil {
				s.started()
			}
			if s.resize != nil {
				go s.sendSizes(ctx)
			}
		case stdio.KindStdout:
			err = deliver(ctx, s.stdout, payload)
		case stdio.KindStderr:
			err = deliver(ctx, s.stderr, payload)
		case stdio.KindStdinTaken:
			select {
			case s.window <- struct{}{}:
			default:
			}
		case stdio.KindResult:
			return result(payload)
		default:
			err = fmt.Errorf("shim sent a frame of unknown kind %d: %w", kind, errdefs.ErrInternal)
		}
		if err != nil {
			return stdio.Result{}, err
		}
	}
}

// deliver writes output to the client. After ctx has ended nobody wants it any more.
func deliver(ctx context.Context, w io.Writer, p []byte) error {
	if w == nil || isClosed(ctx.Done()) {
		return nil
	}
	if _, err := w.Write(p); err != nil {
		return fmt.Errorf("write output to client: %w", err)
	}
	return nil
}

func result(payload []byte) (stdio.Result, error) {
	var r stdio.Result
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, fmt.Errorf("read the shim's result: %w", err)
	}
	if r.Code != 0 {
		return r, errgrpc.ToNative(status.Error(codes.Code(r.Code), r.Message))
	}
	return r, nil
}

// sendStdin sends the client's stdin, no more than the shim has room for.
func (s *session) sendStdin(ctx context.Context) {
	buf := make([]byte, stdio.DataFrame)
	for {
		n, err := s.stdin.Read(buf)
		if n > 0 {
			select {
			case <-s.window:
			case <-ctx.Done():
				return
			}
			if s.wire.Send(stdio.KindStdin, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			_ = s.wire.Send(stdio.KindStdinEnd, nil) // a shim that has gone is noticed by receive
			return
		}
	}
}

// sendSizes passes terminal sizes on. One that comes too late changes nothing.
func (s *session) sendSizes(ctx context.Context) {
	for {
		select {
		case size, ok := <-s.resize:
			if !ok {
				return
			}
			c, err := s.tasks.conn(ctx)
			if err != nil {
				return
			}
			_, _ = c.tasks.ResizePty(ctx, &taskapi.ResizePtyRequest{
				ID: s.req.ID, ExecID: s.req.ExecID, Width: uint32(size.Width), Height: uint32(size.Height),
			})
		case <-ctx.Done():
			return
		}
	}
}

// firstOf gives the first size if it comes soon.
func firstOf(sizes <-chan Size) *specs.Box {
	t := time.NewTimer(firstSize)
	defer t.Stop()
	select {
	case s, ok := <-sizes:
		if ok {
			return &specs.Box{Width: uint(s.Width), Height: uint(s.Height)}
		}
	case <-t.C:
	}
	return nil
}
