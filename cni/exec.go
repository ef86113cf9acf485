// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

const (
	// maxOutput bounds what is kept of a plugin's output, in bytes.
	maxOutput = 4 << 20
	// maxStderr bounds what an error text quotes of it.
	maxStderr = 1 << 10
	// busyTries is how often a plugin program that is being written is tried again.
	busyTries = 10
	busyPause = 200 * time.Millisecond
	// pipeGrace is how long a killed plugin's pipes may stay open by a child that left its group.
	pipeGrace = time.Second
)

// PluginError is the failure of a plugin program.
type PluginError struct {
	Plugin, Verb string
	// Code is the specification's error code; 0 if the plugin gave none.
	Code uint
	// Msg and Details are the plugin's own words, Stderr the end of what it wrote there.
	Msg, Details, Stderr string
	// Err is how the process ended, or context's error if it was killed.
	Err error
}

// Error names the plugin and quotes all that it said.
func (e *PluginError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %s: %s", e.Plugin, e.Verb)
	for _, s := range []string{e.Msg, e.Details} {
		if s != "" {
			b.WriteString(": " + s)
		}
	}
	if e.Msg == "" || errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, context.Canceled) {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Stderr != "" {
		fmt.Fprintf(&b, " (stderr: %s)", e.Stderr)
	}
	return b.String()
}

// Unwrap gives how the process ended and, unless the caller has ended it, that the
// network is not available now: errdefs.ErrUnavailable.
func (e *PluginError) Unwrap() []error {
	_, ours := errors.AsType[*timeLimitError](e.Err)
	if !ours && (errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded)) {
		return []error{e.Err}
	}
	return []error{errdefs.ErrUnavailable, e.Err}
}

// timeLimitError is the end of what took longer than the configuration allows.
type timeLimitError struct{ limit time.Duration }

func (e *timeLimitError) Error() string {
	return fmt.Sprintf("the plugins took longer than %s", e.limit)
}

func (e *timeLimitError) Unwrap() error { return context.DeadlineExceeded }

// pluginExec is libcni's way to plugin programs: each in a process group of
// its own that is killed whole when the context ends, and killed by the kernel
// when we die, so that no ADD goes on behind the back of the next start's DEL. What
// the plugin has started is not killed with it then: see Adding.
// A DEL may go on: some plugins cannot finish what another DEL has begun (the
// bridge finds its masquerading rules by the addresses of the link that it has
// deleted first), and two of them for one ID do each other no harm.
type pluginExec struct {
	version.PluginDecoder
	onAdd func([]byte)
}

var _ invoke.Exec = (*pluginExec)(nil)

// FindInPath is part of invoke.Exec.
func (e *pluginExec) FindInPath(plugin string, dirs []string) (string, error) {
	path, err := invoke.FindInPath(plugin, dirs)
	if err != nil {
		return "", &PluginError{Plugin: plugin, Verb: "find", Err: err}
	}
	return path, nil
}

// ExecPlugin is part of invoke.Exec.
func (e *pluginExec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	verb := verbOf(env)
	var stdout, stderr limitedBuffer
	err := runBusy(ctx, func() error {
		stdout, stderr = limitedBuffer{room: maxOutput}, limitedBuffer{room: maxOutput}
		cmd := exec.CommandContext(ctx, path)
		cmd.Env = env
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
		return runPlugin(cmd, verb)
	})
	if err == nil && stdout.cut {
		err = fmt.Errorf("it wrote more than %d bytes", maxOutput)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("killed before it had finished: %w", cause)
		}
		return nil, pluginError(filepath.Base(path), verb, err, &stdout, &stderr)
	}
	if verb == "ADD" {
		if err := checkRaw(stdout.Bytes()); err != nil {
			return nil, pluginError(filepath.Base(path), verb, err, &stdout, &stderr)
		}
		if e.onAdd != nil {
			e.onAdd(stdout.Bytes())
		}
	}
	return stdout.Bytes(), nil
}

// runBusy runs f again while the program is being written (ETXTBSY).
func runBusy(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyPause):
		}
	}
}

func runPlugin(cmd *exec.Cmd, verb string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if verb != "DEL" {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeGrace
	// The death signal follows the thread that forks, so keep the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	if awaitKilled(cmd.Process.Pid) {
		// What it has delegated to (host-local, for the bridge) would go on, beside the DEL. As
		// long as the plugin is not reaped, its group is nobody else's.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if nothing is left of it
	}
	return cmd.Wait()
}

// awaitKilled waits until a child has ended, without reaping it, and says whether a signal has
// ended it.
func awaitKilled(pid int) bool {
	const killed, dumped = 2, 3 // CLD_KILLED and CLD_DUMPED, waitid(2)
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && (info.Code == killed || info.Code == dumped)
		}
	}
}

func pluginError(plugin, verb string, err error, stdout, stderr *limitedBuffer) *PluginError {
	e := &PluginError{Plugin: plugin, Verb: verb, Err: err, Stderr: tail(stderr.Bytes(), maxStderr)}
	said := types.Error{}
	if out := bytes.TrimSpace(stdout.Bytes()); len(out) > 0 {
		if json.Unmarshal(out, &said) == nil && said.Msg != "" {
			e.Code, e.Msg, e.Details = said.Code, said.Msg, said.Details
		} else {
			e.Msg = fmt.Sprintf("%v, with the output %q", err, tail(out, maxStderr))
		}
	}
	return e
}

func verbOf(env []string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "CNI_COMMAND="); ok {
			return v
		}
	}
	return "?"
}

func tail(b []byte, limit int) string {
	b = bytes.TrimSpace(b)
	if len(b) > limit {
		return "…" + strings.ToValidUTF8(string(b[len(b)-limit:]), "")
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// limitedBuffer keeps the first bytes up to room and swallows the rest, so that
// a plugin gone wild neither fills the memory nor blocks.
type limitedBuffer struct {
	buf  bytes.Buffer
	room int
	cut  bool
}

// Write is part of io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	keep := p
	if len(keep) > b.room {
		b.cut = true
		keep = keep[:b.room]
	}
	b.room -= len(keep)
	b.buf.Write(keep)
	return len(p), nil
}

// Bytes returns what was kept.
func (b *limitedBuffer) Bytes() []byte { return b.buf.Bytes() }
