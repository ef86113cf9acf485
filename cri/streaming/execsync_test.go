// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func execSync(ctx context.Context, s *Server, timeout int64, script string) (*cri.ExecSyncResponse, error) {
	return s.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: "running", Cmd: []string{"sh", "-c", script}, Timeout: timeout})
}

func TestExecSync(t *testing.T) {
	s, _ := serve(t, Config{})
	got, err := execSync(t.Context(), s, 0, "echo out; echo err >&2; exit 7")
	if err != nil || string(got.GetStdout()) != "out\n" || string(got.GetStderr()) != "err\n" || got.GetExitCode() != 7 {
		t.Errorf("%v, %v", got, err)
	}
	got, err = execSync(t.Context(), s, 5, "kill -9 $$")
	if err == nil && got.GetExitCode() == 0 {
		t.Errorf("a killed command gives %v, %v", got, err)
	}
	_, err = s.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: "running", Cmd: []string{"/no/such/program"}})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a missing program gives %v", err)
	}
}

// Case 30: a timeout kills the command and what it started, and says so.
func TestExecSyncTimeout(t *testing.T) {
	s, n := serve(t, Config{})
	for range 3 {
		if _, err := execSync(t.Context(), s, 1, "sleep 1000; true"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("want DeadlineExceeded, got %v", err)
		}
	}
	for _, pid := range n.pids {
		gone(t, pid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := execSync(ctx, s, 60, "sleep 1000; true"); !errors.Is(err, context.Canceled) {
		t.Errorf("want Canceled, got %v", err)
	}
	gone(t, n.pids[len(n.pids)-1])
}

// Case 31: output is bounded, the rest is drained, the reply fits.
func TestExecSyncBoundedOutput(t *testing.T) {
	s, _ := serve(t, Config{})
	for _, c := range []struct {
		script      string
		out, errOut int
	}{
		{"head -c 16000000 /dev/zero; exit 3", 16000000, 0},
		{"head -c 16777216 /dev/zero; exit 3", maxReply, 0},
		{"head -c 16777217 /dev/zero; exit 3", maxReply, 0},
		{"head -c 200000000 /dev/zero; exit 3", maxReply, 0},
		{"head -c 17000000 /dev/zero >&2; echo x; exit 3", 2, maxReply - 2},
		{"head -c 17000000 /dev/zero >&2; head -c 17000000 /dev/zero; exit 3", maxReply / 2, maxReply / 2},
	} {
		got, err := execSync(t.Context(), s, 60, c.script)
		if err != nil || got.GetExitCode() != 3 {
			t.Errorf("%s: code %d, %v", c.script, got.GetExitCode(), err)
		}
		if len(got.GetStdout()) != c.out || len(got.GetStderr()) != c.errOut {
			t.Errorf("%s: %d and %d bytes, want %d and %d", c.script, len(got.GetStdout()), len(got.GetStderr()), c.out, c.errOut)
		}
		if size := proto.Size(got); size > 16<<20 {
			t.Errorf("%s: the reply has %d bytes", c.script, size)
		}
	}
}

// Case 31: commands that print without end do not grow the daemon.
func TestExecSyncMemory(t *testing.T) {
	s, _ := serve(t, Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := execSync(t.Context(), s, 60, "head -c 200000000 /dev/zero"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.Sys > 8*maxOutput*6 {
		t.Errorf("the process took %d MiB", m.Sys>>20)
	}
}

func TestFit(t *testing.T) {
	for _, c := range []struct{ out, err, wantOut, wantErr int }{
		{0, 0, 0, 0},
		{10, 0, 10, 0},
		{11, 0, 10, 0},
		{5, 5, 5, 5},
		{9, 3, 7, 3},
		{3, 9, 3, 7},
		{9, 9, 5, 5},
	} {
		out, errOut := fit(make([]byte, c.out), make([]byte, c.err), 10)
		if len(out) != c.wantOut || len(errOut) != c.wantErr {
			t.Errorf("fit(%d, %d): %d, %d", c.out, c.err, len(out), len(errOut))
		}
	}
}

func TestBadRequests(t *testing.T) {
	s, _ := serve(t, Config{})
	ctx := t.Context()
	cmd := []string{"true"}
	exec := func(r *cri.ExecRequest) error { _, err := s.GetExec(r); return err }
	attach := func(r *cri.AttachRequest) error { _, err := s.GetAttach(r); return err }
	forward := func(r *cri.PortForwardRequest) error { _, err := s.GetPortForward(r); return err }
	sync := func(r *cri.ExecSyncRequest) error { _, err := s.ExecSync(ctx, r); return err }
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"exec nil":              {exec(nil), errdefs.ErrInvalidArgument},
		"exec without id":       {exec(&cri.ExecRequest{Cmd: cmd, Stdout: true}), errdefs.ErrInvalidArgument},
		"exec without command":  {exec(&cri.ExecRequest{ContainerId: "running", Stdout: true}), errdefs.ErrInvalidArgument},
		"exec without streams":  {exec(&cri.ExecRequest{ContainerId: "running", Cmd: cmd}), errdefs.ErrInvalidArgument},
		"exec tty and stderr":   {exec(&cri.ExecRequest{ContainerId: "running", Cmd: cmd, Tty: true, Stdout: true, Stderr: true}), errdefs.ErrInvalidArgument},
		"exec unknown":          {exec(&cri.ExecRequest{ContainerId: "x", Cmd: cmd, Stdout: true}), errdefs.ErrNotFound},
		"exec exited":           {exec(&cri.ExecRequest{ContainerId: "exited", Cmd: cmd, Stdout: true}), errdefs.ErrFailedPrecondition},
		"attach nil":            {attach(nil), errdefs.ErrInvalidArgument},
		"attach tty and stderr": {attach(&cri.AttachRequest{ContainerId: "running", Tty: true, Stderr: true}), errdefs.ErrInvalidArgument},
		"attach unknown":        {attach(&cri.AttachRequest{ContainerId: "x", Stdout: true}), errdefs.ErrNotFound},
		"attach exited":         {attach(&cri.AttachRequest{ContainerId: "exited", Stdout: true}), errdefs.ErrFailedPrecondition},
		"forward nil":           {forward(nil), errdefs.ErrInvalidArgument},
		"forward unknown":       {forward(&cri.PortForwardRequest{PodSandboxId: "x"}), errdefs.ErrNotFound},
		"forward bad port":      {forward(&cri.PortForwardRequest{PodSandboxId: "host", Port: []int32{70000}}), errdefs.ErrInvalidArgument},
		"sync nil":              {sync(nil), errdefs.ErrInvalidArgument},
		"sync negative timeout": {sync(&cri.ExecSyncRequest{ContainerId: "running", Cmd: cmd, Timeout: -1}), errdefs.ErrInvalidArgument},
		"sync unknown":          {sync(&cri.ExecSyncRequest{ContainerId: "x", Cmd: cmd}), errdefs.ErrNotFound},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: want %v, got %v", name, c.want, c.err)
		}
	}
}
