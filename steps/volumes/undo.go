// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs/ctrdir"
)

// Undo unmounts the images, removes their views and lease, and the copies.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.remove(ctx, r.ID()) }

func (a *Action) remove(ctx context.Context, id string) error {
	dir, err := ctrdir.Dir(a.config, id)
	if err != nil {
		return err
	}
	if err := unmountImages(filepath.Join(dir, imagesDir)); err != nil {
		return err // the views are still in use
	}
	return errors.Join(
		a.store.RemoveRootfs(ctx, id+leaseTail),
		removeCopies(a.config.VolumeDir(id)),
		ctrdir.Release(a.config, id),
	)
}

func unmountImages(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list mounted images: %w", err)
	}
	errs := make([]error, 0, len(entries)+1)
	for _, e := range entries {
		errs = append(errs, ctrdir.RemoveMountpoint(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, ctrdir.RemoveEmpty(dir))...)
}

// removeCopies removes the copies, but nothing that might be mounted over them.
func removeCopies(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := mount.UnmountRecursive(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount below %s: %w", dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the copies of the image's volumes: %w", err)
	}
	return nil
}

// Sweep removes views, leases, mounts and copies of containers without a record.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	leased, err := a.store.ListLeases(ctx, kindImages)
	if err != nil {
		return fmt.Errorf("list the views of images: %w", err)
	}
	ids, err := ctrdir.List(a.config, imagesDir)
	if err != nil {
		return fmt.Errorf("list the directories of containers: %w", err)
	}
	copied, err := filepath.Glob(a.config.VolumeDir("*"))
	if err != nil {
		return fmt.Errorf("list the copies of images' volumes: %w", err)
	}
	for _, l := range leased {
		ids = append(ids, strings.TrimSuffix(l, leaseTail))
	}
	for _, c := range copied {
		ids = append(ids, filepath.Base(c))
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] || s.Known(steps.Container, id) {
			continue
		}
		seen[id] = true
		s.Remove("volumes", id, func() error { return a.remove(ctx, id) })
	}
	return nil
}
