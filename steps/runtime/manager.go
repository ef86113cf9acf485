// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime launches pod shims and runs the tasks of pods: through our
// own shim, spoken to directly, or through containerd's task API for other
// shim v2 runtimes.
package runtime

import (
	"context"

	"github.com/containerd/errdefs"
)

// Manager launches shims and keeps the connections to them.
type Manager struct{ cfg Config }

// NewManager returns a manager. It starts nothing.
func NewManager(c Config) *Manager { return &Manager{cfg: c} }

// Close drops the connections; shims and containers run on.
func (m *Manager) Close() error { return nil }

// Launch starts the pod's shim and waits until it answers.
func (m *Manager) Launch(ctx context.Context, r LaunchRequest) (Shim, error) {
	return Shim{}, errdefs.ErrNotImplemented
}

// Shutdown ends the pod's shim and all it runs. It is idempotent: nothing there is success.
func (m *Manager) Shutdown(ctx context.Context, podID, dir string) error {
	return errdefs.ErrNotImplemented
}

// Alive gives a channel that is closed when the pod's shim is gone.
func (m *Manager) Alive(p Pod) (<-chan struct{}, error) { return nil, errdefs.ErrNotImplemented }

// Tasks gives the tasks of a pod.
func (m *Manager) Tasks(p Pod) (Tasks, error) { return nil, errdefs.ErrNotImplemented }
