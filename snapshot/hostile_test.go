// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// hostile is a registry that serves whatever it is told, well-formed or not.
type hostile struct {
	t    *testing.T
	host string

	mu        sync.Mutex
	blobs     map[string][]byte
	manifests map[string]hostileManifest // by tag and digest
	// before, if set, is asked first; it tells whether it has answered.
	before func(w http.ResponseWriter, r *http.Request) bool
}

type hostileManifest struct {
	mediaType string
	body      []byte
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{t: t, blobs: map[string][]byte{}, manifests: map[string]hostileManifest{}}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	h.host = strings.TrimPrefix(s.URL, "http://")
	return h
}

// ServeHTTP serves /v2/IMAGE/manifests/REF and /v2/IMAGE/blobs/DIGEST.
func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.before != nil && h.before(w, r) {
		return
	}
	parts := strings.Split(r.URL.Path, "/")
	name := parts[len(parts)-1]
	h.mu.Lock()
	m, isManifest := h.manifests[name]
	blob, isBlob := h.blobs[name]
	h.mu.Unlock()
	switch {
	case strings.Contains(r.URL.Path, "/manifests/") && isManifest:
		w.Header().Set("Content-Type", m.mediaType)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(m.body).String())
		blob = m.body
	case strings.Contains(r.URL.Path, "/blobs/") && isBlob:
	case r.URL.Path == "/v2/":
	default:
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", timeOf, strings.NewReader(string(blob)))
}

// blob keeps a blob and describes it.
func (h *hostile) blob(mediaType string, body []byte) ocispec.Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := digest.FromBytes(body)
	h.blobs[d.String()] = body
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(body))}
}

// serve keeps a document as a manifest under a tag and gives the reference.
func (h *hostile) serve(tag, mediaType string, document any) string {
	h.t.Helper()
	body, ok := document.([]byte)
	if !ok {
		var err error
		if body, err = json.Marshal(document); err != nil {
			h.t.Fatal(err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	m := hostileManifest{mediaType, body}
	h.manifests[tag], h.manifests[digest.FromBytes(body).String()] = m, m
	return h.host + "/hostile:" + tag
}

// image is a manifest of layers, which tars are, as they come.
func (h *hostile) image(tars ...[]byte) ocispec.Manifest {
	h.t.Helper()
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: ocispec.RootFS{Type: "layers"}}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for _, t := range tars {
		m.Layers = append(m.Layers, h.blob(ocispec.MediaTypeImageLayer, t))
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(t))
	}
	body, err := json.Marshal(config)
	if err != nil {
		h.t.Fatal(err)
	}
	m.Config = h.blob(ocispec.MediaTypeImageConfig, body)
	return m
}

func (*hostile) platform() *ocispec.Platform {
	return &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// refused pulls what must not be pulled, and looks for what is left of it.
func (h *hostile) refused(s *snapshot.Store, ref, says string) {
	h.t.Helper()
	_, err := s.Pull(h.t.Context(), ref, nil, snapshot.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), says) {
		h.t.Errorf("pull %s: %v, want it to say %q", ref, err, says)
	}
	snapshot.Collect(h.t.Context(), h.t, s)
	empty(h.t, s)
}

// mounted gives the root file system of an image, mounted read-only.
func mounted(t *testing.T, s *snapshot.Store, img snapshot.Image) string {
	t.Helper()
	mounts, err := s.PrepareRootfs(t.Context(), "looked-at", snapshot.RootfsOptions{Image: img.ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	dir := snapshottest.Dir(t)
	if err := mount.All(mounts, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
		if err := s.RemoveRootfs(t.Context(), "looked-at"); err != nil && !errdefs.IsNotFound(err) {
			t.Error(err)
		}
	})
	return dir
}
