// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Files in a shim's directory that tell which processes belong to it.
const (
	ShimFile = "shim.json"
	InitFile = "init.json"
)

// process names a process for good: a PID alone may be given to another one.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot
	Boot  string `json:"boot"`
}

// WriteProcess records the living process pid in path.
func WriteProcess(path string, pid int) error {
	p, err := identify(pid)
	if err != nil {
		return fmt.Errorf("record process: %w", err)
	}
	return writeJSON(path, p)
}

// ReadProcess gives the process recorded in path, if it still lives; 0 if it
// does not, or if nothing was recorded.
func ReadProcess(path string) (int, error) {
	var p process
	switch err := readJSON(path, &p); {
	case errors.Is(err, errdefs.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	}
	if now, err := identify(p.PID); err != nil || now != p {
		return 0, nil //nolint:nilerr // gone
	}
	return p.PID, nil
}

// KillProcess kills the process recorded in path and waits, bounded, until it
// is gone. Nothing there is success.
func KillProcess(path string) error {
	pid, err := ReadProcess(path)
	if err != nil || pid <= 1 {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if again, err := ReadProcess(path); err != nil || again != pid {
		return err // it has gone, and fd is another one
	}
	return killAndWait(fd, pid)
}

// KillIf kills a process and waits, bounded, until it is gone, if want says that it is the
// one. No process there is success.
func KillIf(pid int, want func() bool) error {
	if !want() {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // gone, or a thread
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !want() { // it has gone, and fd is another one
		return nil
	}
	return killAndWait(fd, pid)
}

// KillAll does what KillIf does with every process but this one. found says that there was one
// to kill.
func KillAll(want func(pid int) bool) (found bool, err error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return false, fmt.Errorf("look for processes: %w", err)
	}
	var errs []error
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		errs = append(errs, KillIf(pid, func() bool {
			is := want(pid)
			found = found || is
			return is
		}))
	}
	return found, errors.Join(errs...)
}

func killAndWait(fd, pid int) error {
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return waitGone(fd, pid)
}

// waitGone waits until the process behind a pidfd has ended.
func waitGone(fd, pid int) error {
	deadline := time.Now().Add(killTimeout)
	for time.Now().Before(deadline) {
		ms := int(time.Until(deadline).Milliseconds()) + 1
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, ms) //nolint:gosec // a file descriptor
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
	}
	return fmt.Errorf("kill process %d: still there after %s: %w", pid, killTimeout, errdefs.ErrUnavailable)
}

// killTimeout is how long a killed process may take to be gone.
const killTimeout = 5 * time.Second

func identify(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// Fields after the name in parentheses: state is the first, starttime the 20th.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return process{}, fmt.Errorf("process %d: short stat", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return process{}, fmt.Errorf("process %d has ended: %w", pid, errdefs.ErrNotFound)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: fields[19], Boot: strings.TrimSpace(string(boot))}, nil
}
