// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cri/seconds"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

const (
	// maxOutput is how much of each stream ExecSync keeps, in bytes (CRI, ExecSyncResponse).
	maxOutput = 16 << 20
	// maxReply is what fits into the 16 MiB that kubelet receives in one
	// message, beside the few bytes of framing.
	maxReply = maxOutput - 1<<10
	// killGrace is how long ExecSync waits for a command being killed before it
	// answers without it.
	killGrace = 10 * time.Second
)

// ExecSync runs a command and returns its output and exit code. Of each stream
// the first 16 MiB are kept, less if both together exceed what kubelet accepts;
// the rest is read and dropped. A timeout (in seconds) kills the command and
// all it started, and gives context.DeadlineExceeded. A command that cannot be
// started is an error, not an exit code.
func (s *Server) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	reply, err := s.execSync(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("exec in container %q: %w", req.GetContainerId(), err)
	}
	return reply, nil
}

func (s *Server) execSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	if req.GetTimeout() < 0 {
		return nil, fmt.Errorf("the timeout of %d s is negative: %w", req.GetTimeout(), errdefs.ErrInvalidArgument)
	}
	if len(req.GetCmd()) == 0 || req.GetCmd()[0] == "" {
		return nil, fmt.Errorf("no command: %w", errdefs.ErrInvalidArgument)
	}
	done, ok := s.track()
	if !ok {
		return nil, fmt.Errorf("the streaming server is closed: %w", errdefs.ErrUnavailable)
	}
	defer done()
	r, t, leave, err := s.prepare(ctx, req.GetContainerId(), req.GetCmd(), false)
	if err != nil {
		return nil, err
	}
	timeout := seconds.Duration(req.GetTimeout())
	runCtx, cancel := within(ctx, timeout)
	defer cancel()
	var stdout, stderr output
	r.Stdout, r.Stderr = &stdout, &stderr
	code, err := s.runBounded(runCtx, t.Tasks, r, leave)
	switch {
	case runCtx.Err() != nil && ctx.Err() == nil && (err != nil || code == killed):
		return nil, fmt.Errorf("command %q timed out after %s: %w", req.GetCmd()[0], timeout, context.DeadlineExceeded)
	case err != nil:
		return nil, err
	}
	out, errOut := fit(stdout.take(), stderr.take(), maxReply)
	//nolint:gosec // an exit code has eight bits
	return &cri.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(code)}, nil
}

// killed is the exit code of a process ended by SIGKILL.
const killed = 128 + 9

// runBounded is Tasks.Exec, but returns soon after ctx has ended even if the
// shim does not. The place in the container is kept until it does.
func (s *Server) runBounded(ctx context.Context, tasks runtime.Tasks, r runtime.ExecRequest, leave func()) (int, error) {
	type result struct {
		code int
		err  error
	}
	results := make(chan result, 1)
	go func() {
		code, err := tasks.Exec(ctx, r)
		leave() // first: the next command may follow at once
		results <- result{code, err}
	}()
	select {
	case got := <-results:
		return got.code, got.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case got := <-results:
		return got.code, got.err
	case <-timer.C:
		klog.FromContext(ctx).Info("The shim does not end a command that was cancelled", "container", r.ID, "exec", r.ExecID)
		return 0, errors.Join(ctx.Err(), fmt.Errorf("the command could not be ended: %w", errdefs.ErrUnavailable))
	}
}

// within is ctx, bounded by d if d is positive.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d > 0 {
		return context.WithTimeout(ctx, d)
	}
	return context.WithCancel(ctx)
}

// output keeps the first maxOutput bytes written to it and drops the rest. It
// never fails, so that a command with too much output ends by itself.
type output struct {
	mu    sync.Mutex
	buf   []byte
	taken bool
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.taken {
		return len(b), nil
	}
	keep := min(len(b), maxOutput-len(o.buf))
	if need := len(o.buf) + keep; need > cap(o.buf) {
		grown := make([]byte, len(o.buf), min(maxOutput, max(2*cap(o.buf), need)))
		copy(grown, o.buf)
		o.buf = grown
	}
	o.buf = append(o.buf, b[:keep]...)
	return len(b), nil
}

// take returns what was kept; what is written later is dropped.
func (o *output) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken = true
	return o.buf
}

// fit cuts the two outputs so that together they have at most limit bytes. The
// shorter one is cut last.
func fit(stdout, stderr []byte, limit int) (out, errOut []byte) {
	if len(stdout)+len(stderr) <= limit {
		return stdout, stderr
	}
	if len(stderr) <= limit/2 {
		return stdout[:limit-len(stderr)], stderr
	}
	if len(stdout) <= limit/2 {
		return stdout, stderr[:limit-len(stdout)]
	}
	return stdout[:limit-limit/2], stderr[:limit/2]
}
