// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ggcr "github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 49: kinds of layers and configurations that work, and what is refused by name.
func TestMediaTypes(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	plain := snapshottest.Tar(t, snapshottest.File{Name: "f", Body: "x"})
	for _, c := range []struct {
		what  string
		image v1.Image
		want  string // in the error; empty: works
	}{
		{"oci", layered(t, plain, types.OCIUncompressedLayer), ""},
		{"oci gzip", layered(t, gzipped(t, plain), types.OCILayer), ""},
		{"oci zstd", layered(t, zstdOf(t, plain), types.OCILayerZStd), ""},
		{"docker gzip", layered(t, gzipped(t, plain), types.DockerLayer), ""},
		{"docker zstd", layered(t, zstdOf(t, plain), "application/vnd.docker.image.rootfs.diff.tar.zstd"), ""},
		{"no layers", snapshottest.Image(t, v1.Config{}), ""},
		{"octet-stream", mutate.ConfigMediaType(snapshottest.Image(t, v1.Config{}, snapshottest.Layer(t, snapshottest.File{Name: "o"})), "application/octet-stream"), "application/octet-stream"},
		{"unknown layer", layered(t, plain, "application/x-made-up"), "application/x-made-up"},
		{"artifact", mutate.ConfigMediaType(snapshottest.Image(t, v1.Config{}), "application/x-chart"), "application/x-chart"},
	} {
		ref := reg.Push(t, "kinds:"+strings.ReplaceAll(c.what, " ", "-"), c.image)
		img, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
		switch {
		case c.want != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", c.what, err)
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.want == "":
			if _, err := s.PrepareRootfs(t.Context(), c.what, snapshot.RootfsOptions{Image: img.ID}); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
			if err := errors.Join(s.RemoveRootfs(t.Context(), c.what), s.RemoveImage(t.Context(), img.ID)); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

// An index without this platform is refused with the platform's name.
func TestOtherPlatform(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	index := mutate.AppendManifests(mutate.IndexMediaType(ggcr.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: tiny(t, "one"), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "plan9", Architecture: "mips"}},
	})
	ref, err := name.ParseReference(reg.Host + "/a:t")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), ref.Name(), nil, snapshot.PullOptions{}); err == nil || !strings.Contains(err.Error(), "linux/") {
		t.Errorf("pull: %v", err)
	}
	empty(t, s)
}

func layered(t *testing.T, blob []byte, mt types.MediaType) v1.Image {
	t.Helper()
	img := snapshottest.Image(t, v1.Config{}, snapshottest.Layer(t, snapshottest.File{Name: "f", Body: "x"}))
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	// The layer's diff ID is that of what is compressed, which static layers do not know.
	raw, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(ggcr.Image, types.OCIManifestSchema1), types.OCIConfigJSON), static.NewLayer(blob, mt))
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = mutate.ConfigFile(raw, cf); err != nil {
		t.Fatal(err)
	}
	return raw
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstdOf(t *testing.T, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}
