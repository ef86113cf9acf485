// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sandflow-cri/sandflow/steps/runtime/proctree"
	"github.com/sandflow-cri/sandflow/steps/stdio"
)

// idleGrace is how long after an exec'd process has ended its output may be
// silent before a process that it left behind is taken to hold the streams.
const idleGrace = 300 * time.Millisecond

// execution is one exec'd process.
type execution struct {
	pod      *pod
	id       string // of the container
	exec     string
	terminal bool
	pipes    *pipes
	pid      int
	wg       sync.WaitGroup // the copies of its output
	open     bool           // a stream was still open when the copies stopped
	openLock sync.Mutex
}

// exec runs a process to its end and gives its exit code. When ctx ends, the
// process is killed with all that it started.
func (p *pod) exec(ctx context.Context, wire *stdio.Conn, req stdio.Request, in *stdinFrames) (uint32, error) {
	if req.Process == nil {
		return 0, fmt.Errorf("exec in container %s: no process given: %w", req.ID, errdefs.ErrInvalidArgument)
	}
	e := &execution{pod: p, id: req.ID, exec: req.ExecID, terminal: req.Process.Terminal}
	if e.terminal {
		defer p.consoles.collect()
	}
	if err := e.start(ctx, req); err != nil {
		return 0, err
	}
	exited := make(chan struct{})
	e.copyOut(ctx, wire, req, exited)
	if e.pipes.ours.stdin != nil {
		go e.copyIn(in)
	}
	_ = wire.Send(stdio.KindStarted, nil)
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		proctree.Kill(ctx, e.pid, exited)
	})
	code, err := e.wait()
	close(exited)
	e.pipes.closeStdin()
	closeFiles(e.pipes.ours.stdin)
	e.wg.Wait()
	if !stop() {
		<-killed
	}
	e.delete()
	return code, err
}

// start makes and starts the process; nothing is left of it on failure.
func (e *execution) start(ctx context.Context, req stdio.Request) error {
	spec, err := json.Marshal(req.Process)
	if err != nil {
		return err
	}
	if e.pipes, err = newPipes(req.Stdin); err != nil {
		return err
	}
	defer e.pipes.closeTheirs()
	r := &taskapi.ExecProcessRequest{ID: e.id, ExecID: e.exec, Terminal: e.terminal,
		Stdin: e.pipes.path(e.pipes.theirs.stdin), Stdout: e.pipes.path(e.pipes.theirs.stdout),
		Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: spec}}
	if !e.terminal {
		r.Stderr = e.pipes.path(e.pipes.theirs.stderr)
	}
	// Not interrupted by the client's leaving: a half-started process could not be told from none.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	if _, err := e.pod.tasks.Exec(ctx, r); err != nil {
		e.pipes.closeOurs()
		e.pipes.closeStdin()
		return fmt.Errorf("exec in container %s: %w", e.id, errgrpc.ToNative(err))
	}
	started, err := e.pod.tasks.Start(ctx, &taskapi.StartRequest{ID: e.id, ExecID: e.exec})
	if err != nil {
		e.pipes.closeOurs()
		e.pipes.closeStdin()
		_, _ = e.pod.tasks.Delete(ctx, &taskapi.DeleteRequest{ID: e.id, ExecID: e.exec})
		return fmt.Errorf("exec in container %s: %w", e.id, errgrpc.ToNative(err))
	}
	e.pid = int(started.Pid)
	return nil
}

func (e *execution) copyOut(ctx context.Context, wire *stdio.Conn, req stdio.Request, exited <-chan struct{}) {
	for _, s := range []struct {
		from *os.File
		kind stdio.Kind
		want bool
	}{{e.pipes.ours.stdout, stdio.KindStdout, req.Stdout}, {e.pipes.ours.stderr, stdio.KindStderr, req.Stderr}} {
		to := io.Discard
		if s.want {
			to = &untilGone{ctx: ctx, w: wire.Writer(s.kind)}
		}
		e.wg.Go(func() {
			if drained := copyUntilIdle(s.from, to, exited); drained {
				_ = s.from.Close()
				return
			}
			e.openLock.Lock()
			e.open = true
			e.openLock.Unlock()
			go func() { // whoever still writes there must not be stopped by a full pipe
				_ = s.from.SetReadDeadline(time.Time{})
				_, _ = io.Copy(io.Discard, s.from)
				_ = s.from.Close()
			}()
		})
	}
}

// untilGone drops what is written once the client has gone.
type untilGone struct {
	ctx context.Context //nolint:containedctx // tells that the client has gone
	w   io.Writer
	bad bool
}

func (u *untilGone) Write(p []byte) (int, error) {
	if !u.bad && u.ctx.Err() == nil {
		if _, err := u.w.Write(p); err != nil {
			u.bad = true
		}
	}
	return len(p), nil
}

// copyUntilIdle copies r to w until its end, or until the process has exited
// and r has been silent for idleGrace. It tells whether the end was reached.
func copyUntilIdle(r *os.File, w io.Writer, exited <-chan struct{}) bool {
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-exited:
			_ = r.SetReadDeadline(time.Now()) // wakes the reader, which looks at exited itself
		case <-done:
		}
	}()
	buf := make([]byte, stdio.DataFrame)
	armed := false
	for {
		n, err := r.Read(buf)
		if armed && errors.Is(err, os.ErrDeadlineExceeded) {
			n, err = readNow(r, buf)
		}
		if n > 0 {
			_, _ = w.Write(buf[:n])
		}
		switch {
		case errors.Is(err, errSilent):
			return false
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return true
		}
		if armed = isClosed(exited); armed {
			_ = r.SetReadDeadline(time.Now().Add(idleGrace))
		}
	}
}

// errSilent: a stream is open, and there is nothing to read.
var errSilent = errors.New("silent")

// readNow reads what is there, whatever deadline has passed: on a machine with too much to do,
// a deadline can pass before a reader has come to look at what was written long ago. errSilent
// if there is nothing.
func readNow(r *os.File, buf []byte) (n int, err error) {
	if err := r.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, failed = unix.Read(int(fd), buf)
			if !errors.Is(failed, unix.EINTR) {
				return true
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(failed, unix.EAGAIN):
		return 0, errSilent
	case failed != nil:
		return 0, failed
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// copyIn copies the client's stdin. A terminal is not hung up at its end.
func (e *execution) copyIn(in io.Reader) {
	_, err := io.Copy(e.pipes.ours.stdin, in)
	if e.terminal && err == nil {
		return
	}
	_ = e.pipes.ours.stdin.Close()
	_, _ = e.pod.tasks.CloseIO(e.pod.ctx, &taskapi.CloseIORequest{ID: e.id, ExecID: e.exec, Stdin: true})
}

// wait waits for the exit itself, also when the client has gone.
func (e *execution) wait() (uint32, error) {
	r, err := e.pod.tasks.Wait(e.pod.ctx, &taskapi.WaitRequest{ID: e.id, ExecID: e.exec})
	if err != nil {
		return 0, fmt.Errorf("wait for exec in container %s: %w", e.id, errgrpc.ToNative(err))
	}
	return r.ExitStatus, nil
}

// delete forgets the process. While a stream is open that takes containerd's
// service a while, for which the client need not wait.
func (e *execution) delete() {
	forget := func() {
		_, err := e.pod.tasks.Delete(e.pod.ctx, &taskapi.DeleteRequest{ID: e.id, ExecID: e.exec})
		if err != nil && !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			log.G(e.pod.ctx).WithError(err).Warnf("delete exec in container %s", e.id)
		}
	}
	if e.open {
		go forget()
		return
	}
	forget()
}
