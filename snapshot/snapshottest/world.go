// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshottest

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/moby/sys/mountinfo"

	"github.com/sandflow-cri/sandflow/snapshot"
)

// World lists what actions could leave behind: leases and snapshots of containers in
// the store, files and mounts below dirs.
func World(tb testing.TB, s *snapshot.Store, dirs ...string) []string {
	tb.Helper()
	ctx := s.Context(tb.Context())
	var w []string
	leases, err := s.Client().LeasesService().List(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range leases {
		w = append(w, "lease "+l.ID)
	}
	err = s.Client().SnapshotService(s.Snapshotter()).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			w = append(w, "snapshot "+i.Name)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	for _, dir := range dirs {
		w = append(w, below(tb, dir)...)
	}
	return w
}

func below(tb testing.TB, dir string) []string {
	tb.Helper()
	var w []string
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		tb.Fatal(err)
	}
	for _, m := range mounts {
		w = append(w, "mount "+m.Mountpoint)
	}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.Count(strings.TrimPrefix(path, dir), "/") > 1 {
			w = append(w, "file "+path)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}
