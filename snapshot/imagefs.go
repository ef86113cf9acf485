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

const (
	// usageAge is how old the usage of a file system may be.
	usageAge = 10 * time.Second
	// idleTimes is how many times longer a usage is left alone than it took to measure, so
	// that whoever asks all the time costs a twentieth of a CPU and disk at most.
	idleTimes = 20
)

// usageCache keeps what was measured, for as long as that was worth. Its lock is not held
// while measuring.
type usageCache struct {
	mu    sync.Mutex
	kept  FS
	until time.Time
}

func (c *usageCache) get(now time.Time) (FS, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept, now.Before(c.until)
}

// put keeps what was measured from begun to now, at least for some time.
func (c *usageCache) put(fs FS, begun, now time.Time, least time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept, c.until = fs, begun.Add(max(least, idleTimes*now.Sub(begun)))
}

// ImageFS is the file system of the default snapshotter and what the unpacked images
// use of it, not older than ten seconds. What containers wrote is not in it.
func (s *Store) ImageFS(ctx context.Context) (FS, error) {
	return s.usageOf(ctx, &s.imageUse, snapshots.KindCommitted)
}

// ContainerFS is the file system that containers write to, which is that of the default
// snapshotter as well, and what they have written. To measure that all they wrote is
// walked, and so the result is older than ten seconds where that takes long.
func (s *Store) ContainerFS(ctx context.Context) (FS, error) {
	return s.usageOf(ctx, &s.containerUse, snapshots.KindActive)
}

func (s *Store) usageOf(ctx context.Context, cache *usageCache, kind snapshots.Kind) (FS, error) {
	begun := time.Now()
	if fs, ok := cache.get(begun); ok {
		return fs, nil
	}
	ctx = s.Context(ctx)
	root, err := s.snapshotterRoot(ctx, s.config.Snapshotter)
	if err != nil {
		return FS{}, err
	}
	u, err := s.measure(ctx, kind)
	if err != nil {
		return FS{}, err
	}
	fs := FS{Mountpoint: root, Usage: u}
	cache.put(fs, begun, time.Now(), usageAge)
	return fs, nil
}

func (s *Store) measure(ctx context.Context, kind snapshots.Kind) (Usage, error) {
	var sum Usage
	sn := s.client.SnapshotService(s.config.Snapshotter)
	var keys []string // measured outside of the walk, which holds the snapshotter's database
	err := sn.Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind == kind {
			keys = append(keys, i.Name)
		}
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("list snapshots: %w", err)
	}
	for _, key := range keys {
		u, err := sn.Usage(ctx, key)
		if errdefs.IsNotFound(err) {
			continue // removed since it was listed
		}
		if err != nil {
			return Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
		}
		sum.Bytes += u.Size
		sum.Inodes += u.Inodes
	}
	return sum, nil
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
