// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"bytes"
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Waiters is how many callers wait for pulls.
func Waiters(s *Store) int {
	s.pulls.mu.Lock()
	defer s.pulls.mu.Unlock()
	n := 0
	for _, c := range s.pulls.calls {
		n += c.waiters
	}
	return n
}

// Collect runs containerd's garbage collection.
func Collect(ctx context.Context, t *testing.T, s *Store) {
	t.Helper()
	ctx = s.Context(ctx)
	ls := s.client.LeasesService()
	l, err := ls.Create(ctx, leases.WithRandomID())
	if err == nil {
		err = ls.Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// PutImage has the store hold an image that another client of containerd brought.
func PutImage(ctx context.Context, t *testing.T, s *Store, name string, manifest []byte) {
	t.Helper()
	ctx = s.Context(ctx)
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	err := content.WriteBlob(ctx, s.client.ContentStore(), name, bytes.NewReader(manifest), desc)
	if err == nil {
		_, err = s.client.ImageService().Create(ctx, images.Image{Name: name, Target: desc})
	}
	if err != nil {
		t.Fatal(err)
	}
	s.view.changed()
}
