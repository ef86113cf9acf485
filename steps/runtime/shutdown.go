// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/errdefs"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

const (
	pingTimeout     = 2 * time.Second
	shutdownTimeout = 20 * time.Second
)

// Shutdown ends the pod's shim and all it runs, and removes its directory and
// its PID namespace. A shim that does not answer is killed. It is idempotent:
// nothing there is success.
func (m *Manager) Shutdown(ctx context.Context, podID, dir string) error {
	if err := m.shutdown(ctx, podID, dir); err != nil {
		return fmt.Errorf("shut down shim of pod %s: %w", podID, err)
	}
	return nil
}

func (m *Manager) shutdown(ctx context.Context, podID, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := m.killStrays(podID, dir); err != nil {
			return err
		}
		return errors.Join(unpin(pidNamespace(dir)), os.RemoveAll(m.tmp(podID)))
	}
	if err := m.ask(ctx, dir); err != nil && !errdefs.IsUnavailable(err) {
		klog.FromContext(ctx).Info("Shim did not shut down by itself, killing it", "sandbox", podID, "err", err)
	}
	if err := m.killShim(podID, dir); err != nil {
		return err
	}
	if err := m.deleteLeft(ctx, dir); err != nil {
		return err
	}
	if err := unpin(pidNamespace(dir)); err != nil {
		return err
	}
	if cgroup, err := os.ReadFile(filepath.Join(dir, cgroupFile)); err == nil {
		if err := bundle.RemoveCgroupPath(ctx, string(cgroup)); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(m.tmp(podID)), os.RemoveAll(dir))
}

// ask asks the shim to end and waits for that. It does not wait long for a shim that hangs.
func (m *Manager) ask(ctx context.Context, dir string) error {
	c, err := m.dial(ctx, filepath.Join(dir, apiSocket))
	if err != nil {
		return err
	}
	defer func() { _ = c.client.Close() }()
	if err := c.alive(ctx, pingTimeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	if _, err := c.pod.Shutdown(ctx, &shimapi.Empty{}); err != nil {
		return native(err)
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killShim kills the shim and its init by what is recorded of them, and what can be found of
// a shim without a record.
func (m *Manager) killShim(podID, dir string) error {
	errs := []error{bundle.KillProcess(filepath.Join(dir, bundle.ShimFile))}
	if _, err := os.Stat(filepath.Join(dir, bundle.ShimFile)); err != nil {
		errs = append(errs, m.killStrays(podID, dir))
	}
	return errors.Join(append(errs, bundle.KillProcess(filepath.Join(dir, bundle.InitFile)))...)
}

// deleteLeft deletes the containers that the shim could not delete any more.
func (m *Manager) deleteLeft(ctx context.Context, dir string) error {
	root := filepath.Join(dir, "runc", m.cfg.Namespace)
	left, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range left {
		binary, err := runc.ReadRuntime(m.cfg.Bundle(d.Name()))
		if err != nil || binary == "" {
			binary = "runc"
		}
		_, err = forceDelete(ctx, ociState{binary, root, d.Name(), m.cfg.Bundle(d.Name())})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
