// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 42, 43: one ID per content; the digest decides; every form finds the image.
func TestReferences(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	img := tiny(t, "one")
	ref := reg.Push(t, "a/b:t", img)
	reg.Push(t, "c:other", img)
	repo, dgst := strings.TrimSuffix(ref, ":t"), digestOf(t, img)

	byDigest := pull(t, s, repo+":wrong@"+dgst)
	if len(byDigest.RepoTags) != 0 || !slices.Equal(byDigest.RepoDigests, []string{repo + "@" + dgst}) {
		t.Errorf("pulled by digest: tags %v, digests %v", byDigest.RepoTags, byDigest.RepoDigests)
	}
	byTag := pull(t, s, ref)
	elsewhere := pull(t, s, reg.Host+"/c:other")
	if byTag.ID != byDigest.ID || elsewhere.ID != byTag.ID {
		t.Errorf("IDs differ: %s, %s, %s", byDigest.ID, byTag.ID, elsewhere.ID)
	}
	if want := []string{ref, reg.Host + "/c:other"}; !slices.Equal(elsewhere.RepoTags, want) {
		t.Errorf("tags are %v, want %v", elsewhere.RepoTags, want)
	}
	list, err := s.Images(t.Context())
	if err != nil || len(list) != 1 || list[0].Pinned {
		t.Fatalf("list is %v, %v", list, err)
	}
	id := byTag.ID
	for _, form := range []string{ref, repo + "@" + dgst, ref + "@" + dgst, repo + ":nosuch@" + dgst, id, id[7:], id[:12], id[7:19]} {
		if got, err := s.Image(t.Context(), form); err != nil || got.ID != id {
			t.Errorf("image %s: %v, %v", form, got.ID, err)
		}
	}
	for _, form := range []string{repo, repo + ":nosuch", "nosuch", "", "UPPER", id[7:9], "sha256:" + strings.Repeat("0", 64)} {
		if got, err := s.Image(t.Context(), form); !errdefs.IsNotFound(err) {
			t.Errorf("image %q: %v, %v; want not found", form, got.ID, err)
		}
	}
}

// A tag that moves leaves the old image listed by its digest until it is removed.
func TestTagMoves(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	first := pull(t, s, reg.Push(t, "a:t", tiny(t, "one")))
	second := pull(t, s, reg.Push(t, "a:t", tiny(t, "two")))
	if first.ID == second.ID {
		t.Fatal("both are one image")
	}
	old, err := s.Image(t.Context(), first.ID)
	if err != nil || len(old.RepoTags) != 0 || len(old.RepoDigests) != 1 {
		t.Errorf("old image has tags %v, digests %v, %v", old.RepoTags, old.RepoDigests, err)
	}
	if err := s.RemoveImage(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Image(t.Context(), first.ID); !errdefs.IsNotFound(err) {
		t.Errorf("removed image: %v", err)
	}
	if _, err := s.Image(t.Context(), reg.Host+"/a:t"); err != nil {
		t.Errorf("the other image: %v", err)
	}
}

// CASES 4: absent is success, twice; by any name the whole image goes, and its content.
func TestRemove(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	img := tiny(t, "one")
	ref := reg.Push(t, "a:t", img)
	reg.Push(t, "b:t", img)
	pull(t, s, ref)
	pull(t, s, reg.Host+"/b:t")
	for range 2 {
		if err := s.RemoveImage(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		empty(t, s)
	}
	for _, absent := range []string{"nosuch", "sha256:" + strings.Repeat("a", 64), "UPPER"} {
		if err := s.RemoveImage(t.Context(), absent); err != nil {
			t.Errorf("remove %s: %v", absent, err)
		}
	}
}

// CASES 47: pinned is the image configured now, however it came and whatever was before.
func TestPinned(t *testing.T) {
	snapshottest.NeedRoot(t)
	reg := snapshottest.Serve(t, nil)
	c := snapshottest.Config(snapshottest.Dir(t))
	one, two := reg.Push(t, "pause:1", tiny(t, "one")), reg.Push(t, "pause:2", tiny(t, "two"))
	pinned := func(s *snapshot.Store) string {
		list, err := s.Images(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, i := range list {
			if got, err := s.Image(t.Context(), i.ID); err != nil || got.Pinned != i.Pinned {
				t.Errorf("list and status differ: %v, %v, %v", i.Pinned, got.Pinned, err)
			}
			if i.Pinned {
				names = append(names, i.RepoTags...)
			}
		}
		return strings.Join(names, " ")
	}
	c.SandboxImage = one
	s, err := snapshot.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	pull(t, s, one)
	byDigest := pull(t, s, two)
	if got := pinned(s); got != one {
		t.Errorf("pinned: %s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c.SandboxImage = byDigest.RepoDigests[0]
	s = snapshottest.Open(t, c)
	if got := pinned(s); got != two {
		t.Errorf("pinned after another was configured: %s", got)
	}
	ctx := s.Context(t.Context())
	record := images.Image{Name: one, Labels: map[string]string{"io.cri-containerd.pinned": "pinned"}}
	if _, err := s.Client().ImageService().Update(ctx, record, "labels"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (snapshot.Image, error) {
		if got := pinned(s); got != one+" "+two && got != two+" "+one {
			return snapshot.Image{}, errors.New("pinned: " + got)
		}
		return snapshot.Image{}, nil
	})
}

// CASES 45: what lacks a layer is not shown, can be removed, and is repaired by a pull.
func TestHalfPresent(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	src := tiny(t, "one")
	ref := reg.Push(t, "a:t", src)
	img := pull(t, s, ref)
	damage := func() {
		t.Helper()
		ctx := s.Context(t.Context())
		layers, err := src.Layers()
		if err != nil {
			t.Fatal(err)
		}
		d, err := layers[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Client().SnapshotService(s.Snapshotter()).Remove(ctx, img.ChainID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Image(t.Context(), ref); err != nil {
			t.Errorf("an image that can be unpacked again: %v", err)
		}
		if err := s.Client().ContentStore().Delete(ctx, digest.Digest(d.String())); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() (snapshot.Image, error) {
			if _, err := s.Image(t.Context(), ref); !errdefs.IsNotFound(err) {
				return snapshot.Image{}, fmt.Errorf("half an image: %w", err)
			}
			return snapshot.Image{}, nil
		})
		if list, err := s.Images(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("list: %v, %v", list, err)
		}
	}
	damage()
	pull(t, s, ref)
	if _, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: img.ID}); err != nil {
		t.Errorf("rootfs of a repaired image: %v", err)
	}
	if err := s.RemoveRootfs(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	damage()
	if err := s.RemoveImage(t.Context(), ref); err != nil {
		t.Error(err)
	}
	empty(t, s)
}

// CASES 44: a record that cannot be read is not shown, and its removal removes it.
func TestGhost(t *testing.T) {
	s := snapshottest.New(t)
	ctx := s.Context(t.Context())
	record := images.Image{Name: "docker.io/library/ghost:1", Target: ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("nothing"), Size: 7,
	}}
	if _, err := s.Client().ImageService().Create(ctx, record); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Image(t.Context(), "ghost:1"); !errdefs.IsNotFound(err) {
		t.Errorf("ghost: %v", err)
	}
	if err := s.RemoveImage(t.Context(), "ghost:1"); err != nil {
		t.Error(err)
	}
	empty(t, s)
}
