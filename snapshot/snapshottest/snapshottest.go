// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package snapshottest starts real stores in throw-away directories and serves tiny
// images from a registry on loopback, for tests.
package snapshottest

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sandflow-cri/sandflow/snapshot"
)

// NeedRoot skips the test without root, as snapshots are mounted.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: mounts snapshots")
	}
}

// Dir makes a directory whose path is short enough for sockets.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "sf")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("left behind: %v", err)
		}
	})
	return dir
}

// Config is that of a store below dir.
func Config(dir string) snapshot.Config {
	return snapshot.Config{Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state")}
}

// Open starts a store and closes it at the end of the test.
func Open(tb testing.TB, c snapshot.Config) *snapshot.Store {
	tb.Helper()
	NeedRoot(tb)
	s, err := snapshot.Start(context.WithoutCancel(tb.Context()), c)
	if err != nil {
		tb.Fatalf("start the store: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close the store: %v", err)
		}
	})
	return s
}

// New starts a store in a directory of its own.
func New(tb testing.TB) *snapshot.Store {
	tb.Helper()
	return Open(tb, Config(Dir(tb)))
}

// Registry is an image registry on loopback.
type Registry struct {
	Host string
}

// Serve starts a registry; wrap, if not nil, stands before it.
func Serve(tb testing.TB, wrap func(http.Handler) http.Handler) *Registry {
	tb.Helper()
	h := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)), registry.WithReferrersSupport(false))
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return &Registry{Host: strings.TrimPrefix(srv.URL, "http://")}
}

// Push stores an image under repository:tag and returns its full reference.
func (r *Registry) Push(tb testing.TB, ref string, img v1.Image, opts ...remote.Option) string {
	tb.Helper()
	full := r.Host + "/" + ref
	n, err := name.ParseReference(full, name.Insecure)
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.Write(n, img, opts...); err != nil {
		tb.Fatalf("push %s: %v", full, err)
	}
	return full
}

// File is an entry of a layer.
type File struct {
	Name     string // ends in "/": a directory
	Body     string
	Link     string // symbolic
	HardLink string
	Mode     int64 // default 0755
	UID, GID int
	Time     time.Time
	XAttrs   map[string]string
}

// Layer makes an uncompressed layer.
func Layer(tb testing.TB, files ...File) v1.Layer {
	tb.Helper()
	return static.NewLayer(Tar(tb, files...), types.OCIUncompressedLayer)
}

// Tar makes a tar archive.
func Tar(tb testing.TB, files ...File) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(f.header()); err != nil {
			tb.Fatal(err)
		}
		if f.Link == "" && f.HardLink == "" {
			if _, err := io.WriteString(w, f.Body); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func (f File) header() *tar.Header {
	h := &tar.Header{Name: f.Name, Mode: f.Mode, Uid: f.UID, Gid: f.GID, ModTime: f.Time, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(1_000_000_000, 0)
	}
	switch {
	case strings.HasSuffix(f.Name, "/"):
		h.Typeflag = tar.TypeDir
	case f.Link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
	case f.HardLink != "":
		h.Typeflag, h.Linkname = tar.TypeLink, f.HardLink
	default:
		h.Size = int64(len(f.Body))
	}
	for k, v := range f.XAttrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+k] = v
	}
	return h
}

// Image makes an OCI image for this machine's platform.
func Image(tb testing.TB, c v1.Config, layers ...v1.Layer) v1.Image {
	tb.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		tb.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		tb.Fatal(err)
	}
	return img
}
