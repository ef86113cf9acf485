// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// Answers asks the pod's shim for a sign of life. One that gives none within two seconds is
// errdefs.ErrUnavailable, with what is known of its process. Foreign shims are not asked.
func (m *Manager) Answers(ctx context.Context, p Pod) error {
	h, err := m.handler(p.Handler)
	if err != nil || h.Type != OwnType {
		return err
	}
	c, err := m.dial(ctx, p.Address)
	if err == nil {
		err = c.alive(ctx, pingTimeout)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("its shim%s has not answered for %s: %w", condition(filepath.Dir(p.Address)), pingTimeout, errdefs.ErrUnavailable)
	}
	return err
}

// condition is what the kernel says of a shim's process.
func condition(dir string) string {
	pid, err := bundle.ReadProcess(filepath.Join(dir, bundle.ShimFile))
	if err != nil || pid == 0 {
		return ""
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	state := bytes.TrimSpace(raw[bytes.LastIndexByte(raw, ')')+1:])
	switch {
	case len(state) > 0 && (state[0] == 'T' || state[0] == 't'):
		return fmt.Sprintf(" (process %d) is stopped and", pid)
	case len(state) > 0 && state[0] == 'D':
		return fmt.Sprintf(" (process %d) hangs in the kernel and", pid)
	default:
		return fmt.Sprintf(" (process %d)", pid)
	}
}
