// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// usageAge is how old the usage of the image file system may be.
const usageAge = 10 * time.Second

type usageCache struct {
	mu    sync.Mutex // not held while measuring
	taken time.Time
	fs    FS
}

// ImageFS is the file system of the default snapshotter and what the unpacked images
// use of it, not older than ten seconds. What containers wrote is not in it.
func (s *Store) ImageFS(ctx context.Context) (FS, error) {
	s.fsUse.mu.Lock()
	fs, taken := s.fsUse.fs, s.fsUse.taken
	s.fsUse.mu.Unlock()
	if !taken.IsZero() && time.Since(taken) < usageAge {
		return fs, nil
	}
	fs, err := s.measure(s.Context(ctx))
	if err != nil {
		return FS{}, err
	}
	s.fsUse.mu.Lock()
	defer s.fsUse.mu.Unlock()
	s.fsUse.fs, s.fsUse.taken = fs, time.Now()
	return fs, nil
}

func (s *Store) measure(ctx context.Context) (FS, error) {
	root, err := s.snapshotterRoot(ctx, s.config.Snapshotter)
	if err != nil {
		return FS{}, err
	}
	fs := FS{Mountpoint: root}
	sn := s.client.SnapshotService(s.config.Snapshotter)
	err = sn.Walk(ctx, func(ctx context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			return nil
		}
		u, err := sn.Usage(ctx, i.Name)
		if errdefs.IsNotFound(err) {
			return nil // removed since it was listed
		}
		if err != nil {
			return fmt.Errorf("usage of snapshot %s: %w", i.Name, err)
		}
		fs.Bytes += u.Size
		fs.Inodes += u.Inodes
		return nil
	})
	if err != nil {
		return FS{}, fmt.Errorf("measure the images: %w", err)
	}
	return fs, nil
}

// snapshotterRoot is the directory that containerd says a snapshotter keeps its layers in.
func (s *Store) snapshotterRoot(ctx context.Context, name string) (string, error) {
	resp, err := s.client.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==io.containerd.snapshotter.v1,id==%s", name))
	if err != nil {
		return "", fmt.Errorf("ask containerd about snapshotter %s: %w", name, err)
	}
	for _, p := range resp.GetPlugins() {
		if root := p.GetExports()["root"]; root != "" {
			return root, nil
		}
	}
	return "", fmt.Errorf("containerd does not say where snapshotter %s keeps its layers: %w", name, errdefs.ErrNotFound)
}
