// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// checkTimeout bounds "criu check".
const checkTimeout = 15 * time.Second

// CRIU tells whether CRIU works on this node. It is asked once.
type CRIU struct {
	// Program is CRIU's, a name in PATH or a path; empty: criu.
	Program string

	once sync.Once
	err  error
}

// Usable is nil if containers can be dumped and restored here; else an error of class
// errdefs.ErrNotImplemented that says why not. OCI runtimes find criu in PATH, as this does.
func (c *CRIU) Usable(ctx context.Context) error {
	c.once.Do(func() { c.err = c.check(context.WithoutCancel(ctx)) })
	return c.err
}

func (c *CRIU) check(ctx context.Context) error {
	name := c.Program
	if name == "" {
		name = "criu"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("criu, which checkpoint and restore need, is not installed: %w: %w", err, errdefs.ErrNotImplemented)
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "check")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("criu does not work on this kernel: %s check: %w: %s: %w", path, err, lastError(out), errdefs.ErrNotImplemented)
	}
	return nil
}

// lastError is the last line of CRIU's output that tells of an error, or the last one.
func lastError(out []byte) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], "Error") {
			return strings.TrimSpace(lines[i])
		}
	}
	return strings.TrimSpace(lines[len(lines)-1])
}
