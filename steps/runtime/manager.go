// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtime launches pod shims and runs the tasks of pods: through our
// own shim, spoken to directly, or through containerd's task API for other
// shim v2 runtimes.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const defaultNamespace = "k8s.io"

// Manager launches shims and keeps the connections to them.
type Manager struct {
	cfg Config

	mu       sync.Mutex
	conns    map[string]*conn         // by address
	creating map[string]chan struct{} // creations whose caller may have gone, by container
	foreign  *foreign                 // what is kept of containers of foreign runtimes
}

// NewManager returns a manager. It starts nothing.
func NewManager(c Config) *Manager {
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	if c.Bundle == nil {
		state := c.State
		c.Bundle = func(id string) string { return filepath.Join(state, "containers", id) }
	}
	if c.SandboxBundle == nil {
		state := c.State
		c.SandboxBundle = func(id string) string { return filepath.Join(state, "pods", id, "sandbox") }
	}
	m := &Manager{cfg: c, conns: map[string]*conn{}, creating: map[string]chan struct{}{}}
	m.foreign = newForeign(m)
	return m
}

// Close drops the connections; shims and containers run on.
func (m *Manager) Close() error {
	m.mu.Lock()
	conns := m.conns
	m.conns = map[string]*conn{}
	m.mu.Unlock()
	for _, c := range conns {
		_ = c.client.Close() // it has nothing to flush
	}
	m.foreign.close()
	return nil
}

// handler gives the handler of a name; "" falls back to a plain runc under our shim.
func (m *Manager) handler(name string) (Handler, error) {
	h, ok := m.cfg.Handlers[name]
	if !ok {
		if name != "" {
			return h, fmt.Errorf("runtime handler %q: %w", name, errdefs.ErrNotFound)
		}
		h.Type = OwnType
	}
	if h.Binary == "" {
		h.Binary = "runc"
	}
	return h, nil
}

// Alive gives a channel that is closed when the pod's shim is gone; it is
// closed already if nobody listens at its address, or it has none. That it cannot be
// reached for another reason is an error, and says nothing of the shim. For a foreign
// runtime it is closed when the
// pod's sandbox container ends, and never if the pod has none.
func (m *Manager) Alive(p Pod) (<-chan struct{}, error) {
	h, err := m.handler(p.Handler)
	if err != nil {
		return nil, err
	}
	if h.Type != OwnType {
		return m.foreign.alive(p), nil
	}
	c, err := m.dial(context.Background(), p.Address) //nolint:forbidigo // connecting to a unix socket is bounded
	if p.Address == "" || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		gone := make(chan struct{})
		close(gone)
		return gone, nil
	}
	if err != nil {
		return nil, err
	}
	return c.gone, nil
}

// Tasks gives the tasks of a pod. Nothing is asked of the shim yet.
func (m *Manager) Tasks(p Pod) (Tasks, error) {
	h, err := m.handler(p.Handler)
	if err != nil {
		return nil, err
	}
	if h.Type != OwnType {
		return &foreignTasks{foreign: m.foreign, pod: p, handler: h}, nil
	}
	return &podTasks{m: m, pod: p, handler: h}, nil
}

// bundle is where a container's bundle lies.
func (m *Manager) bundle(id string) string {
	if dir := m.cfg.SandboxBundle(id); exists(dir) {
		return dir
	}
	return m.cfg.Bundle(id)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// runcRoot is the state directory of the OCI runtime for a pod's containers.
func (m *Manager) runcRoot(h Handler, shimDir string) string {
	if h.Root != "" {
		return h.Root
	}
	return filepath.Join(shimDir, "runc")
}
