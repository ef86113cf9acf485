// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"google.golang.org/grpc/status"

	"github.com/sandflow-cri/sandflow/steps/stdio"
)

// serveStreams serves attach and exec: one connection each.
func serveStreams(ctx context.Context, l net.Listener, p *pod) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				log.G(ctx).WithError(err).Error("accept stream")
			}
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			serveStream(ctx, conn, p)
		}()
	}
}

// serveStream serves one client. The client's leaving cancels what it asked for.
func serveStream(ctx context.Context, conn net.Conn, p *pod) {
	wire := stdio.NewConn(conn)
	kind, payload, err := wire.Receive()
	if err != nil || kind != stdio.KindRequest {
		return
	}
	var req stdio.Request
	if err := json.Unmarshal(payload, &req); err != nil {
		sendResult(wire, 0, fmt.Errorf("read stream request: %w: %w", err, errdefs.ErrInvalidArgument))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := newStdinFrames(ctx, wire)
	go func() {
		defer cancel()
		in.receive(wire)
	}()
	if req.ExecID == "" {
		sendResult(wire, 0, p.attach(ctx, wire, req, in))
		return
	}
	code, err := p.exec(ctx, wire, req, in)
	sendResult(wire, code, err)
}

// sendResult ends the conversation; a client that has gone does not hear it.
func sendResult(wire *stdio.Conn, code uint32, err error) {
	r := stdio.Result{Exit: code}
	if err != nil {
		st, _ := status.FromError(errgrpc.ToGRPC(err))
		r.Code, r.Message = uint32(st.Code()), st.Message()
	}
	_ = wire.SendJSON(stdio.KindResult, r)
}

func (p *pod) attach(ctx context.Context, wire *stdio.Conn, req stdio.Request, in *stdinFrames) error {
	c, err := p.get(req.ID)
	if err != nil {
		return err
	}
	select {
	case <-c.made:
	case <-ctx.Done():
		return ctx.Err()
	}
	if c.hub == nil {
		return fmt.Errorf("attach to container %s: the shim does not own its stdio: %w", c.id, errdefs.ErrFailedPrecondition)
	}
	a := stdio.Attachment{}
	if req.Stdin {
		a.Stdin = in
	}
	if req.Stdout {
		a.Stdout = wire.Writer(stdio.KindStdout)
	}
	if req.Stderr {
		a.Stderr = wire.Writer(stdio.KindStderr)
	}
	if err := wire.Send(stdio.KindStarted, nil); err != nil {
		return err
	}
	return c.hub.Attach(ctx, a)
}

// stdinFrames is the client's stdin as a reader.
type stdinFrames struct {
	ctx    context.Context //nolint:containedctx // bounds Read
	wire   *stdio.Conn
	frames chan []byte // closed at the end of stdin
	rest   []byte
}

func newStdinFrames(ctx context.Context, wire *stdio.Conn) *stdinFrames {
	return &stdinFrames{ctx: ctx, wire: wire, frames: make(chan []byte, stdio.StdinWindow)}
}

// receive reads the client's frames until it leaves. It never waits for the one who reads stdin.
func (s *stdinFrames) receive(wire *stdio.Conn) {
	open := true
	for {
		kind, payload, err := wire.Receive()
		switch {
		case err != nil:
			return
		case kind == stdio.KindStdin && open:
			select {
			case s.frames <- payload:
			default: // more than the window allows
				return
			}
		case kind == stdio.KindStdinEnd && open:
			open = false
			close(s.frames)
		}
	}
}

func (s *stdinFrames) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		select {
		case b, ok := <-s.frames:
			if !ok {
				return 0, io.EOF
			}
			s.rest = b
			if err := s.wire.Send(stdio.KindStdinTaken, nil); err != nil {
				return 0, err
			}
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}
