// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// orphanPoll is how often the watch of an orphan looks whether it should end.
const orphanPoll = 500 * time.Millisecond

// watchOrphan blocks while the init process of a container runs whose shim has
// gone. It returns at once if there is no such process. Whoever made the process
// is dead, so its exit code can not be had.
func watchOrphan(ctx context.Context, containerID string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil // gone, or there never was one
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if !runsIn(pid, containerID) {
		return nil // the number belongs to a stranger by now
	}
	for ctx.Err() == nil {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a small number
		n, err := unix.Poll(polled, int(orphanPoll/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch process %d: %w", pid, err)
		}
		if n > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// runsIn tells whether a process is in the cgroup of a container: its path ends
// in the container's ID under both cgroup drivers.
func runsIn(pid int, containerID string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(text), containerID)
}
