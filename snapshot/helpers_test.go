// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

func tiny(t *testing.T, text string) v1.Image {
	t.Helper()
	return snapshottest.Image(t, v1.Config{Cmd: []string{text}, Labels: map[string]string{
		"io.cri-containerd.pinned": "pinned", "containerd.io/gc.root": "x",
	}}, snapshottest.Layer(t, snapshottest.File{Name: "text", Body: text}))
}

func digestOf(t *testing.T, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func pull(t *testing.T, s *snapshot.Store, ref string) snapshot.Image {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// empty fails unless nothing at all is in the store.
func empty(t *testing.T, s *snapshot.Store) {
	t.Helper()
	if left := contents(t, s); len(left) > 0 {
		t.Errorf("left in the store: %v", left)
	}
}

func contents(t *testing.T, s *snapshot.Store) []string {
	t.Helper()
	ctx := s.Context(t.Context())
	var left []string
	records, err := s.Client().ListImages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		left = append(left, "image "+r.Name())
	}
	leased, err := s.Client().LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leased {
		left = append(left, "lease "+l.ID)
	}
	if err := walkContent(ctx, s.Client(), func(what string) { left = append(left, what) }); err != nil {
		t.Fatal(err)
	}
	return left
}

func eventually(t *testing.T, f func() (snapshot.Image, error)) snapshot.Image {
	t.Helper()
	var err error
	for range 500 {
		var img snapshot.Image
		if img, err = f(); err == nil {
			return img
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal(err)
	return snapshot.Image{}
}

func importTar(ctx context.Context, t *testing.T, c *containerd.Client, ref string, img v1.Image) {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tarball.Write(tag, img, &b); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Import(ctx, &b); err != nil {
		t.Fatal(err)
	}
}

// walkContent lists blobs, ingests and snapshots.
func walkContent(ctx context.Context, c *containerd.Client, found func(string)) error {
	err := c.ContentStore().Walk(ctx, func(i content.Info) error {
		found("blob " + i.Digest.String())
		return nil
	})
	if err != nil {
		return err
	}
	ingests, err := c.ContentStore().ListStatuses(ctx)
	if err != nil {
		return err
	}
	for _, i := range ingests {
		found("ingest " + i.Ref)
	}
	return c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		found("snapshot " + i.Name)
		return nil
	})
}
