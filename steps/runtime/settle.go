// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

const (
	// settleTime bounds asking one shim, which may hang.
	settleTime = 5 * time.Second
	// settleAtOnce is how many are asked side by side.
	settleAtOnce = 64
	// tasksDir is where containerd keeps the bundles of tasks, below its state directory.
	tasksDir = "io.containerd.runtime.v2.task"
)

// Settle takes up what containers of foreign runtimes did while no daemon was there. It
// comes before the containerd inside of the daemon whose state directory is given: that one
// ends the shims of containers that have ended, and what only these know, the exit and the
// last output, would go with them. What cannot be settled is left to containerd.
func (m *Manager) Settle(ctx context.Context, state string) {
	dir := filepath.Join(state, tasksDir, m.cfg.Namespace)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Error(err, "Look for containers that have ended")
	}
	var g errgroup.Group
	g.SetLimit(settleAtOnce)
	for _, e := range entries {
		g.Go(func() error {
			if err := m.settle(ctx, e.Name(), filepath.Join(dir, e.Name())); err != nil {
				klog.FromContext(ctx).Error(err, "Could not learn how a container has ended", "container", e.Name())
			}
			return nil
		})
	}
	_ = g.Wait() // each has told its own
}

// settle notes the exit of a container that has ended, once its output is read.
func (m *Manager) settle(ctx context.Context, id, task string) error {
	dir := m.bundle(id)
	var r foreignRecord
	if err := bundle.ReadForeign(dir, &r); err != nil {
		return nil // not of ours, or damaged: then there are no streams either
	}
	if _, err := bundle.ReadExit(dir); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, m.cfg.Namespace), settleTime)
	defer cancel()
	state, err := askShim(ctx, id, task)
	if err != nil || state.GetStatus() != tasktypes.Status_STOPPED {
		return err
	}
	_, err = (&foreignTasks{foreign: m.foreign}).noteExit(id, dir, state.GetExitStatus(), state.GetExitedAt().AsTime())
	return err
}

// shimAddress is what containerd keeps of how it speaks to a shim.
type shimAddress struct {
	Version           int
	Address, Protocol string
}

// askShim asks the shim of a task for the state of its container. Versions 2 and 3 of the
// service differ in nothing that matters here.
func askShim(ctx context.Context, id, task string) (*taskapi.StateResponse, error) {
	raw, err := os.ReadFile(filepath.Join(task, "bootstrap.json"))
	if err != nil {
		return nil, fmt.Errorf("find the shim: %w", err)
	}
	var to shimAddress
	if err := json.Unmarshal(raw, &to); err != nil {
		return nil, fmt.Errorf("find the shim: %w", err)
	}
	path, ok := strings.CutPrefix(to.Address, "unix://")
	if !ok || to.Protocol != "ttrpc" {
		return nil, fmt.Errorf("it speaks %s at %s, which only containerd does", to.Protocol, to.Address)
	}
	conn, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	client := ttrpc.NewClient(conn)
	defer func() { _ = client.Close() }() // it has nothing to flush
	answer := &taskapi.StateResponse{}
	service := fmt.Sprintf("containerd.task.v%d.Task", to.Version)
	if err := client.Call(ctx, service, "State", &taskapi.StateRequest{ID: id}, answer); err != nil {
		return nil, fmt.Errorf("ask the shim: %w", native(err))
	}
	return answer, nil
}
