// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// firstSize is how long a command on a terminal waits for the client to say how
// large the terminal is, so that it never sees another size first.
const firstSize = 50 * time.Millisecond

// streams are the ends of a session at the client's side. What was not asked
// for is nil.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.WriteCloser
	resize         <-chan remotecommand.TerminalSize
}

func (s *Server) serveExec(w http.ResponseWriter, r *http.Request, req *cri.ExecRequest) {
	opts := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	run := func(ctx context.Context, st streams) error { return s.exec(ctx, req, st) }
	if speaksV5(r) {
		s.serveV5(w, r, opts, run)
		return
	}
	remotecommand.ServeExec(w, r, session{opts, run}, "", "", req.GetContainerId(), req.GetCmd(),
		&opts, s.cfg.IdleTimeout, s.cfg.CreationTimeout, remotecommand.SupportedStreamingProtocols)
}

func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request, req *cri.AttachRequest) {
	opts := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	run := func(ctx context.Context, st streams) error { return s.attach(ctx, req, st) }
	if speaksV5(r) {
		s.serveV5(w, r, opts, run)
		return
	}
	remotecommand.ServeAttach(w, r, session{opts, run}, "", "", req.GetContainerId(),
		&opts, s.cfg.IdleTimeout, s.cfg.CreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// session is one exec or attach as the streaming library calls it back.
type session struct {
	opts remotecommand.Options
	run  func(ctx context.Context, st streams) error
}

// ExecInContainer implements remotecommand.Executor; the request is known to run.
//
//nolint:revive // as many parameters as the interface has
func (s session) ExecInContainer(ctx context.Context, _, _, _ string, _ []string, in io.Reader, out, err io.WriteCloser,
	_ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	return s.start(ctx, streams{in, out, err, resize})
}

// AttachContainer implements remotecommand.Attacher.
//
//nolint:revive // as many parameters as the interface has
func (s session) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, err io.WriteCloser,
	_ bool, resize <-chan remotecommand.TerminalSize,
) error {
	return s.start(ctx, streams{in, out, err, resize})
}

// start runs the session on the streams that were asked for. Its output is
// ended before it returns, hence before its status is sent. It is called on the
// goroutine of the HTTP handler, which it aborts when the client has gone: there
// is nobody to send a status to, and the library would wait for ever to write to
// a stream whose opening it could not acknowledge.
func (s session) start(ctx context.Context, st streams) error {
	if !s.opts.Stdin {
		st.stdin = nil
	}
	if !s.opts.Stdout {
		st.stdout = nil
	}
	if !s.opts.Stderr {
		st.stderr = nil
	}
	if !s.opts.TTY {
		st.resize = nil
	}
	err := s.run(ctx, st)
	if ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	for _, w := range []io.Closer{st.stdout, st.stderr} {
		if w != nil {
			_ = w.Close() // fails only if the client has gone
		}
	}
	return err
}

// exec runs the command of a request. A command that ends with another code
// than 0 gives a utilexec.CodeExitError, which becomes the client's exit code;
// one that cannot be started gives another error.
func (s *Server) exec(ctx context.Context, req *cri.ExecRequest, st streams) error {
	id := req.GetContainerId()
	r, t, leave, err := s.prepare(ctx, id, req.GetCmd(), req.GetTty())
	if err != nil {
		return fmt.Errorf("exec in container %s: %w", id, err)
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.Stdin = st.stdin
	if st.stdout != nil {
		r.Stdout = st.stdout
	}
	if st.stderr != nil {
		r.Stderr = st.stderr
	}
	if st.resize != nil {
		r.Resize = s.sizes(ctx, st.resize, r.Process)
	}
	code, err := t.Tasks.Exec(ctx, r)
	if err != nil {
		return fmt.Errorf("exec in container %s: %w", id, err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

// attach joins the streams of a container. That the client leaves is no error.
func (s *Server) attach(ctx context.Context, req *cri.AttachRequest, st streams) error {
	id := req.GetContainerId()
	t, err := s.target(ctx, id)
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	leave, err := s.limits.enter(t.ID)
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r runtime.AttachRequest
	if t.Stdin {
		r.Stdin = st.stdin
	} else if st.stdin != nil {
		// Unread input would hold up the session's other streams.
		s.sessions.Go(func() { _, _ = io.Copy(io.Discard, st.stdin) })
	}
	if st.stdout != nil {
		r.Stdout = st.stdout
	}
	if st.stderr != nil && !t.TTY {
		r.Stderr = st.stderr
	}
	if st.resize != nil && t.TTY {
		r.Resize = s.sizes(ctx, st.resize, nil)
	}
	if err := t.Tasks.Attach(ctx, t.ID, r); err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	return nil
}

// prepare finds the container, takes one of its places and makes the process.
func (s *Server) prepare(ctx context.Context, id string, cmd []string, tty bool) (
	r runtime.ExecRequest, t Target, leave func(), err error,
) {
	if t, err = s.target(ctx, id); err != nil {
		return r, t, nil, err
	}
	p, err := spec.ExecProcess(t.Bundle, cmd, tty)
	if err != nil {
		return r, t, nil, err
	}
	if leave, err = s.limits.enter(t.ID); err != nil {
		return r, t, nil, err
	}
	return runtime.ExecRequest{ID: t.ID, ExecID: "exec-" + rand.Text(), Process: p}, t, leave, nil
}

// sizes hands on the client's terminal sizes until ctx ends. For a process yet
// to be started it waits a moment for the first one and starts the terminal with it.
func (s *Server) sizes(ctx context.Context, in <-chan remotecommand.TerminalSize, p *specs.Process) <-chan runtime.Size {
	out := make(chan runtime.Size, 1)
	if p != nil {
		timer := time.NewTimer(firstSize)
		defer timer.Stop()
		select {
		case size, ok := <-in:
			if ok {
				p.ConsoleSize = &specs.Box{Height: uint(size.Height), Width: uint(size.Width)}
				out <- runtime.Size(size)
			}
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.sessions.Go(func() {
		for {
			select {
			case size, ok := <-in:
				if !ok {
					return
				}
				select {
				case out <- runtime.Size(size):
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return out
}
