// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 44: another client's images are seen and removed, also after a restart, and
// an attached store sees the same.
func TestOtherClients(t *testing.T) {
	c := snapshottest.Config(snapshottest.Dir(t))
	c.Socket = filepath.Join(c.State, "c.sock")
	snapshottest.NeedRoot(t)
	s, err := snapshot.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if st, err := os.Stat(c.Socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}
	other, err := containerd.New(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx := namespaces.WithNamespace(t.Context(), "k8s.io")
	importTar(ctx, t, other, "docker.io/library/loaded:1", tiny(t, "loaded"))
	loaded := eventually(t, func() (snapshot.Image, error) { return s.Image(t.Context(), "loaded:1") })
	if _, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: "loaded:1"}); err != nil {
		t.Errorf("rootfs of an image that was not unpacked: %v", err)
	}
	attached(t, c, loaded)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = snapshottest.Open(t, c)
	if again, err := s.Image(t.Context(), "loaded:1"); err != nil || again.ID != loaded.ID {
		t.Errorf("after a restart: %v, %v", again.ID, err)
	}
	if keys, err := s.ListRootfs(t.Context()); err != nil || !slices.Equal(keys, []string{"k"}) {
		t.Errorf("rootfs after a restart: %v, %v", keys, err)
	}
	if err := s.RemoveRootfs(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if err := s.Client().ImageService().Delete(ctx, "docker.io/library/loaded:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() (snapshot.Image, error) {
		if _, err := s.Image(t.Context(), "loaded:1"); !errdefs.IsNotFound(err) {
			return snapshot.Image{}, errors.New("still there")
		}
		return snapshot.Image{}, nil
	})
}

func attached(t *testing.T, c snapshot.Config, loaded snapshot.Image) {
	t.Helper()
	reg := snapshottest.Serve(t, nil)
	a, err := snapshot.Start(t.Context(), snapshot.Config{Address: c.Socket, Root: "/other"})
	if err != nil {
		t.Fatal(err)
	}
	if a.Embedded() || a.Healthy(t.Context()) != nil {
		t.Errorf("attached store: embedded %v, healthy %v", a.Embedded(), a.Healthy(t.Context()))
	}
	if got, err := a.Plugin(snapshot.StorePlugin, "store"); err != nil || got != a {
		t.Errorf("the store's plugin: %v, %v", got, err)
	}
	if img, err := a.Image(t.Context(), "loaded:1"); err != nil || img.ID != loaded.ID {
		t.Errorf("attached store sees %v, %v", img.ID, err)
	}
	img := pull(t, a, reg.Push(t, "a:t", tiny(t, "attached")))
	if _, err := a.PrepareRootfs(t.Context(), "a", snapshot.RootfsOptions{Image: img.ID}); err != nil {
		t.Error(err)
	}
	if keys, err := a.ListRootfs(t.Context()); err != nil || !slices.Equal(keys, []string{"a"}) {
		t.Errorf("rootfs of the attached store: %v, %v", keys, err)
	}
	if fs, err := a.ImageFS(t.Context()); err != nil || fs.Mountpoint == "" || fs.Inodes == 0 {
		t.Errorf("image file system: %+v, %v", fs, err)
	}
	if err := errors.Join(a.RemoveRootfs(t.Context(), "a"), a.RemoveImage(t.Context(), img.ID), a.Close()); err != nil {
		t.Error(err)
	}
	if a.Healthy(t.Context()) == nil {
		t.Error("healthy after Close")
	}
}

// What cannot work is refused at the start, with a reason, and holds nothing back.
func TestBadStart(t *testing.T) {
	snapshottest.NeedRoot(t)
	dir := snapshottest.Dir(t)
	for _, c := range []struct {
		what   string
		change func(*snapshot.Config)
		want   string
	}{
		{"socket", func(c *snapshot.Config) { c.Socket = "/" + strings.Repeat("x", 99) }, "106 bytes long"},
		{"snapshotter", func(c *snapshot.Config) { c.Snapshotter = "none" }, "io.containerd.snapshotter.v1.none"},
		{"plugin", func(c *snapshot.Config) { c.RequiredPlugins = []string{"io.sandflow.x.v1.y"} }, "io.sandflow.x.v1.y"},
		{"same dir", func(c *snapshot.Config) { c.State = c.Root }, "different"},
		{"nobody there", func(c *snapshot.Config) { c.Address = filepath.Join(dir, "none.sock") }, "none.sock"},
	} {
		cfg := snapshottest.Config(dir)
		c.change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := snapshot.Start(ctx, cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
		cancel()
	}
	s := snapshottest.Open(t, snapshottest.Config(dir))
	if err := s.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Closing at once must not end the process, as containerd would.
func TestCloseAtOnce(t *testing.T) {
	snapshottest.NeedRoot(t)
	for range 10 {
		// A listener closed before it served unlinks its path late, hence another each time.
		s, err := snapshot.Start(t.Context(), snapshottest.Config(snapshottest.Dir(t)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// An attached store outlives a restart of the containerd it is attached to.
func TestContainerdRestarts(t *testing.T) {
	snapshottest.NeedRoot(t)
	c := snapshottest.Config(snapshottest.Dir(t))
	c.Socket = filepath.Join(c.State, "c.sock")
	other, err := snapshot.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	reg := snapshottest.Serve(t, nil)
	first := pull(t, other, reg.Push(t, "a:1", tiny(t, "one")))
	a := snapshottest.Open(t, snapshot.Config{Address: c.Socket, Root: "/other"})
	if _, err := a.Image(t.Context(), first.ID); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.Healthy(ctx); !errdefs.IsUnavailable(err) {
		t.Errorf("containerd is away: %v", err)
	}
	other = snapshottest.Open(t, c)
	second := pull(t, other, reg.Push(t, "a:2", tiny(t, "two")))
	eventually(t, func() (snapshot.Image, error) { return a.Image(t.Context(), second.ID) })
}

// What a pull had fetched when the daemon was killed is collected after the next start.
func TestKilledPull(t *testing.T) {
	snapshottest.NeedRoot(t)
	c := snapshottest.Config(snapshottest.Dir(t))
	s, err := snapshot.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx := s.Context(t.Context())
	lease, err := s.Client().LeasesService().Create(ctx, leases.WithRandomID(), leases.WithLabels(map[string]string{
		"sandflow.io/kind": "pull", "sandflow.io/instance": c.Root,
	}))
	if err != nil {
		t.Fatal(err)
	}
	blob := []byte("a layer")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	if err := content.WriteBlob(leases.WithLease(ctx, lease.ID), s.Client().ContentStore(), "layer", bytes.NewReader(blob), desc); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = snapshottest.Open(t, c)
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}
