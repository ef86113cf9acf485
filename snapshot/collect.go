// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"k8s.io/klog/v2"
)

// collectKey is a snapshot that is made and removed at each start.
const collectKey = "sandflow-start"

// collect lets the embedded containerd remove the directories of snapshots that
// a crash kept it from removing. It collects a snapshotter's garbage only if
// one of its snapshots has been removed since the start, and until then those
// directories would take disk space that nobody accounts for.
func (s *Store) collect(ctx context.Context) {
	if !s.Embedded() {
		return
	}
	if _, err := s.Plugin(plugins.SnapshotPlugin, s.config.Snapshotter); err != nil {
		return // the start fails, or has said so
	}
	sn := s.client.SnapshotService(s.config.Snapshotter)
	_, err := sn.Prepare(ctx, collectKey, "")
	if err == nil || errdefs.IsAlreadyExists(err) {
		err = sn.Remove(ctx, collectKey)
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Could not have snapshots collected that a crash may have left", "snapshotter", s.config.Snapshotter)
	}
}
