// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"time"

	"github.com/containerd/containerd/v2/pkg/gc"
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
	// The first collection may be on its way, and forgets it.
	s.noteRemoval()
	if err != nil && !errdefs.IsNotFound(err) { // a collection of its own may be faster
		klog.FromContext(ctx).Error(err, "Could not have snapshots collected that a crash may have left", "snapshotter", s.config.Snapshotter)
	}
}

// collectPause is how long removals are gathered before what they left is collected.
const collectPause = 2 * time.Second

// collectLater has the embedded containerd collect garbage some time after each
// removal. By itself it does so at once, but forgets the removals of the time in
// which a collection runs: on a node that is idle afterwards, the directories of
// those snapshots would keep their disk space until something else is removed.
func (s *Store) collectLater(ctx context.Context) {
	instance, err := s.Plugin(plugins.GCPlugin, "scheduler")
	scheduler, ok := instance.(interface {
		ScheduleAndWait(ctx context.Context) (gc.Stats, error)
	})
	if err != nil || !ok {
		return // attached: what else it has to do is not known here
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.removed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(collectPause):
		}
		if _, err := scheduler.ScheduleAndWait(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not have removed snapshots collected")
		}
	}
}

// noteRemoval asks for a collection; it never waits.
func (s *Store) noteRemoval() {
	select {
	case s.removed <- struct{}{}:
	default: // it is asked for already
	}
}
