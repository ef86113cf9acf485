// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience is how long anything of a cluster may take to come or to go.
const patience = 2 * time.Minute

// process is a long-running program of a cluster, in the laboratory or in one of its nodes.
type process struct {
	name string
	log  string
	make func(ctx context.Context) *exec.Cmd

	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait, once done is closed
}

// start starts the program; it lives until it is stopped, whatever becomes of the context.
func (p *process) start(ctx context.Context) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	p.cmd = p.make(context.WithoutCancel(ctx))
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		return fmt.Errorf("could not start %s: %w", p.name, err)
	}
	p.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		p.err = cmd.Wait()
		close(done)
	}(p.cmd, p.done)
	return nil
}

// stop ends the program with a signal and waits for it. One that has ended already is an error
// of an earlier time.
func (p *process) stop(sig syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	defer func() { p.cmd = nil }()
	if err := signalTo(p.cmd.Process, sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("could not signal %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		err := fmt.Errorf("%s did not end within a minute of %s", p.name, sig)
		return errors.Join(err, signalTo(p.cmd.Process, syscall.SIGKILL))
	}
}

// gone waits for a program that ends because its node does.
func (p *process) gone() {
	if p != nil && p.cmd != nil {
		<-p.done
		p.cmd = nil
	}
}

// until tries something again and again until it succeeds, the program ends, or patience does.
func (p *process) until(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%w); the end of its log:\n%s", p.name, p.err, tail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.name, err, tail(p.log))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// signalTo signals a process, or what nsenter runs: that is its child, since a PID namespace
// is only entered by one.
func signalTo(p *os.Process, sig syscall.Signal) error {
	inner := children(p.Pid)
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Pid))
	if err != nil || strings.TrimSpace(string(comm)) != "nsenter" || len(inner) == 0 {
		return p.Signal(sig)
	}
	var errs []error
	for _, pid := range inner {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func children(pid int) []int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for _, field := range strings.Fields(string(raw)) {
		if child, err := strconv.Atoi(field); err == nil {
			out = append(out, child)
		}
	}
	return out
}

func tail(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(raw[max(0, len(raw)-most):])
}
