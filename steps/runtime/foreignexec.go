// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	runcopts "github.com/containerd/containerd/api/types/runc/options"
	criopts "github.com/containerd/containerd/api/types/runtimeoptions/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/proctree"
	"github.com/sandflow-cri/sandflow/steps/stdio"
)

// execSilence is how long after an exec's end its streams may be silent before they are given up.
const execSilence = time.Second

// runcType is the runtime type whose options are runc's.
const runcType = "io.containerd.runc."

// isRunc tells whether the runtime is containerd's own for runc: it takes runc's
// options, and its processes are processes of this node.
func isRunc(h Handler) bool {
	return strings.HasPrefix(h.Type, runcType) || strings.HasPrefix(filepath.Base(h.Type), "containerd-shim-runc-")
}

// runtimeOptions are the options that a foreign shim gets, from the handler's TOML table.
func runtimeOptions(h Handler, root string) (any, error) {
	table, err := toml.Marshal(h.Options)
	if err != nil {
		return nil, fmt.Errorf("runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var o any = &criopts.Options{}
	if isRunc(h) {
		if h.Root != "" {
			root = h.Root
		}
		o = &runcopts.Options{BinaryName: h.Binary, SystemdCgroup: h.SystemdCgroup, Root: root}
	} else if len(h.Options) == 0 {
		return nil, nil //nolint:nilnil // no options
	}
	d := toml.NewDecoder(bytes.NewReader(table)).DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		return nil, fmt.Errorf("runtime options of %s: %w: %w", h.Type, err, errdefs.ErrInvalidArgument)
	}
	return o, nil
}

func (t *foreignTasks) Exec(ctx context.Context, r ExecRequest) (int, error) {
	if r.Process == nil || r.ExecID == "" {
		return 0, fmt.Errorf("exec in container %s: no process or no ID given: %w", r.ID, errdefs.ErrInvalidArgument)
	}
	task, nctx, err := t.foreign.task(ctx, r.ID)
	if err != nil {
		return 0, err
	}
	proc := *r.Process
	if proc.Terminal && r.Resize != nil && proc.ConsoleSize == nil {
		proc.ConsoleSize = firstOf(r.Resize)
	}
	// The process is made, ended and deleted whole, whatever becomes of the caller.
	detached := context.WithoutCancel(nctx)
	in := &endReader{r: r.Stdin, end: make(chan struct{})}
	out := &activity{}
	p, err := task.Exec(detached, r.ExecID, &proc, t.execIO(r, in, out, proc.Terminal))
	if err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.ID, err)
	}
	code, err := t.runExec(ctx, detached, p, r, in.end)
	if err == nil {
		out.settle(p.IO().Wait) // deleting would cut the output off
	}
	if _, derr := p.Delete(detached); derr != nil && err == nil && !errdefs.IsNotFound(derr) {
		err = derr // its output may not have been delivered
	}
	return code, err
}

func (t *foreignTasks) runExec(ctx, detached context.Context, p containerd.Process, r ExecRequest, stdinEnd <-chan struct{}) (int, error) {
	status, err := p.Wait(detached)
	if err != nil {
		return 0, err
	}
	if err := p.Start(detached); err != nil {
		return 0, fmt.Errorf("exec in container %s: %w", r.ID, err)
	}
	if r.Started != nil {
		r.Started()
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	go resizeAll(running, r.Resize, func(s Size) { _ = p.Resize(detached, uint32(s.Width), uint32(s.Height)) })
	if r.Process.Terminal {
		stdinEnd = nil // a terminal is not hung up at the end of stdin
	}
	go func() {
		select {
		case <-stdinEnd:
			_ = p.CloseIO(detached, containerd.WithStdinCloser) // it may be over
		case <-running.Done():
		}
	}()
	select {
	case s := <-status:
		return int(s.ExitCode()), s.Error()
	case <-ctx.Done():
	}
	t.killExec(detached, p, status)
	return 0, ctx.Err()
}

// killExec kills an exec'd process and waits, bounded, for that. Where its
// processes are the node's, all that it started is killed too.
func (t *foreignTasks) killExec(ctx context.Context, p containerd.Process, status <-chan containerd.ExitStatus) {
	exited := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if isRunc(t.handler) {
			proctree.Kill(ctx, int(p.Pid()), exited)
			return
		}
		_ = p.Kill(ctx, unix.SIGKILL) // gone is as good
	}()
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-status:
		close(exited)
	case <-timer.C:
		return
	}
	select {
	case <-done:
	case <-timer.C:
	}
}

func (t *foreignTasks) execIO(r ExecRequest, in *endReader, out *activity, terminal bool) cio.Creator {
	var stdin io.Reader
	if r.Stdin != nil {
		stdin = in
	}
	opts := []cio.Opt{
		cio.WithStreams(stdin, out.writer(r.Stdout), out.writer(r.Stderr)),
		cio.WithFIFODir(fifoPath(t.foreign.m.bundle(r.ID), "")),
	}
	if terminal {
		opts = append(opts, cio.WithTerminal)
	}
	return cio.NewCreator(opts...)
}

// activity watches the writers of an exec, to tell a slow client, for whom there
// is more, from streams that a process left behind holds open.
type activity struct {
	writing atomic.Int32
	last    atomic.Int64 // when the last write ended, in nanoseconds after born
}

// born is a time to measure from; by it what is measured does not jump when the clock is set.
var born = time.Now()

type activeWriter struct {
	a *activity
	w io.Writer
}

func (a *activity) writer(w io.Writer) io.Writer {
	if w == nil {
		w = io.Discard
	}
	return activeWriter{a, w}
}

func (w activeWriter) Write(p []byte) (int, error) {
	w.a.writing.Add(1)
	defer func() {
		w.a.last.Store(int64(time.Since(born)))
		w.a.writing.Add(-1)
	}()
	return w.w.Write(p)
}

// settle waits for the end of the streams after the process has ended, or for
// their silence.
func (a *activity) settle(wait func()) {
	a.last.Store(int64(time.Since(born)))
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	tick := time.NewTicker(execSilence / 10)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			if a.writing.Load() == 0 && time.Since(born)-time.Duration(a.last.Load()) > execSilence {
				return
			}
		}
	}
}

// endReader tells when it has been read to its end.
type endReader struct {
	r    io.Reader
	once sync.Once
	end  chan struct{}
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil {
		e.once.Do(func() { close(e.end) })
	}
	return n, err
}

func (t *foreignTasks) Attach(ctx context.Context, id string, r AttachRequest) error {
	hub, err := t.foreign.hub(ctx, id)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	if task, nctx, err := t.foreign.task(running, id); err == nil {
		go resizeAll(running, r.Resize, func(s Size) { _ = task.Resize(nctx, uint32(s.Width), uint32(s.Height)) })
	}
	return hub.Attach(ctx, stdio.Attachment{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr})
}

// resizeAll passes sizes on until there are no more or ctx ends.
func resizeAll(ctx context.Context, sizes <-chan Size, resize func(Size)) {
	if sizes == nil {
		return
	}
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			resize(s)
		case <-ctx.Done():
			return
		}
	}
}
