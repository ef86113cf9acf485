// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine boots a machine in a laboratory: systemd as process 1 of a copy on write
// of this machine's files, with namespaces and cgroups of its own. What is installed in it,
// or enabled, is not on this machine; it shares only the kernel with it.
package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

//go:embed boot.sh
var bootScript []byte

// bootTimeout bounds how long the machine may take until systemd has started everything.
const bootTimeout = time.Minute

// Machine is a machine that was booted. Its disk outlives it: it can be booted again.
type Machine struct {
	dir    string
	cgroup string // of the laboratory
	boots  int
	cmd    *exec.Cmd
	output bytes.Buffer
	pid    int // of its process 1, as seen from the laboratory
	ended  chan struct{}
}

// New makes a machine with an empty disk in the laboratory. It is not booted.
func New(lab *harness.Lab) (*Machine, error) {
	dir, err := os.MkdirTemp(lab.Dir, "machine-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // users of the machine go through it
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "boot.sh"), bootScript, 0o700); err != nil { //nolint:gosec // a program
		return nil, err
	}
	return &Machine{dir: dir, cgroup: lab.CgroupParent}, nil
}

// Boot boots the machine and waits until systemd has started everything. An error tells if
// a service could not be started.
func (m *Machine) Boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	m.boots++
	cgroup := fmt.Sprintf("%s/%s.%d", m.cgroup, filepath.Base(m.dir), m.boots) // cgroups do not outlive a boot
	// The machine outlives the caller's bound on its start.
	m.cmd = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(m.dir, "boot.sh"), m.dir, cgroup)
	m.output.Reset()
	m.cmd.Stdout, m.cmd.Stderr = &m.output, &m.output
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("boot a machine: %w", err)
	}
	m.ended, m.pid = make(chan struct{}), 0
	go func() {
		_ = m.cmd.Wait() // it is told by ProcessState
		close(m.ended)
	}()
	for {
		out, err := m.state(ctx)
		switch {
		case err == nil:
			return nil
		case strings.TrimSpace(out) == "degraded":
			failed, _ := m.Run(ctx, "systemctl", "--failed", "--no-legend", "--plain")
			return fmt.Errorf("boot a machine: services failed: %s", failed)
		}
		select {
		case <-m.ended:
			return fmt.Errorf("boot a machine: it ended (%s): %s", m.cmd.ProcessState, m.output.String())
		case <-ctx.Done():
			return fmt.Errorf("boot a machine: %s (%w): %s", out, err, m.output.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// state asks systemd how far the machine is, once there is a systemd.
func (m *Machine) state(ctx context.Context) (string, error) {
	// unshare has one child, which becomes systemd.
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.cmd.Process.Pid))
	if err != nil {
		return "", err
	}
	if m.pid, err = strconv.Atoi(strings.TrimSpace(string(raw))); err != nil {
		return "", errors.New("there are no namespaces yet")
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid))
	if err != nil || strings.TrimSpace(string(comm)) != "systemd" {
		return "", fmt.Errorf("there is no systemd yet: %w", errors.Join(err, errors.New(string(comm))))
	}
	return m.Run(ctx, "systemctl", "is-system-running", "--wait")
}

// Command is a command to be run in the machine.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.pid), "--all", "--", name}, args...)...)
	c.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root", "LC_ALL=C.UTF-8",
		"DEBIAN_FRONTEND=noninteractive", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0",
	}
	return c
}

// Run runs a command in the machine and returns what it prints. The error has what it says
// on standard error.
func (m *Machine) Run(ctx context.Context, name string, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	c := m.Command(ctx, name, args...)
	c.Stdout, c.Stderr = &out, &complaints
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, out.String(), complaints.String())
	}
	return out.String(), nil
}

// PID is the process ID in the laboratory of the machine's process 1.
func (m *Machine) PID() int { return m.pid }

// Path is where a file of the machine is seen from the laboratory.
func (m *Machine) Path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(m.pid), "root", path)
}

// PowerOff ends the machine at once, as if its plug were pulled.
func (m *Machine) PowerOff() error {
	if m.ended == nil {
		return nil
	}
	pid := m.pid
	if pid == 0 { // it never came so far
		pid = m.cmd.Process.Pid
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end a machine: %w", err)
	}
	<-m.ended // process 1 has taken all others with it
	return nil
}
