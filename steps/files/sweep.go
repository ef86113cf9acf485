// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

// Sweep removes the directories of pods that no record knows, with whatever is
// still mounted in them.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	entries, err := os.ReadDir(filepath.Dir(a.cfg.PodDir("x")))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the pods' directories: %w", err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.Known(steps.Sandbox, e.Name()) {
			continue
		}
		dir, err := pod.Dir(a.cfg, e.Name())
		if err != nil {
			return err
		}
		s.Remove("pod directory", dir, func() error { return removeTree(dir) })
	}
	return nil
}

// removeTree removes dir, but never reaches through a mount. A shim that could
// not be ended, which is tried before this, keeps the way to it.
func removeTree(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, "shim")); err == nil {
		return fmt.Errorf("remove %s: its shim is still there", dir)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	// The deepest first.
	slices.SortFunc(mounts, func(a, b *mountinfo.Info) int {
		return strings.Count(b.Mountpoint, "/") - strings.Count(a.Mountpoint, "/")
	})
	for _, m := range mounts {
		if err := pod.Unmount(m.Mountpoint); err != nil {
			return err
		}
	}
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	if len(left) > 0 {
		return fmt.Errorf("remove %s: %s is still mounted", dir, left[0].Mountpoint)
	}
	return os.RemoveAll(dir)
}
