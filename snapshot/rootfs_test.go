// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

func TestRootfs(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	img := pull(t, s, reg.Push(t, "a:t", tiny(t, "one")))
	first, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: img.ID}); err != nil || !slices.EqualFunc(first, again, sameMount) {
		t.Errorf("prepared again: %v, %v", again, err)
	}
	// The lease keeps what the container stands on when the image is removed under it.
	if err := s.RemoveImage(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := mount.All(first, dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "text"))
	if err != nil || string(b) != "one" {
		t.Errorf("read %q, %v", b, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), make([]byte, 10000), 0o600); err != nil {
		t.Error(err)
	}
	if u, err := s.RootfsUsage(t.Context(), "k"); err != nil || u.Bytes < 10000 || u.Inodes < 1 {
		t.Errorf("usage %+v, %v", u, err)
	}
	images, err := s.ImageFS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	written, err := s.ContainerFS(t.Context())
	if err != nil || written.Mountpoint != images.Mountpoint || written.Bytes < 10000 || images.Bytes >= 10000 {
		t.Errorf("images take %+v, containers have written %+v, %v", images, written, err)
	}
	if err := mount.UnmountAll(dir, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.RemoveRootfs(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.RootfsUsage(t.Context(), "k"); !errdefs.IsNotFound(err) {
		t.Errorf("usage of nothing: %v", err)
	}
	if _, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: "nosuch"}); !errdefs.IsNotFound(err) {
		t.Errorf("rootfs of no image: %v", err)
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

func sameMount(a, b mount.Mount) bool {
	return a.Type == b.Type && a.Source == b.Source && slices.Equal(a.Options, b.Options)
}
