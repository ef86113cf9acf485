// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// The tests here show what SECURITY.md says of published vulnerabilities of image handling.

var timeOf = time.Unix(1_000_000_000, 0)

// enough is how long a pull may take that would go on for ever if it were not refused.
const enough = time.Minute

// TestCVE_2021_32760 unpacks layers whose entries reach for a file of the node through
// links: its mode, owner, content and number of links stay as they are. So it is for
// CVE-2025-47290, where a link took the place of a directory between two layers.
func TestCVE_2021_32760(t *testing.T) {
	node := snapshottest.Dir(t)
	victim := filepath.Join(node, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := func(f ...snapshottest.File) []byte { return snapshottest.Tar(t, f...) }
	h, s := newHostile(t), snapshottest.New(t)
	up := strings.Repeat("../", 40)
	for what, layers := range map[string][][]byte{
		"hard link to a link":        {file(snapshottest.File{Name: "l", Link: victim}, snapshottest.File{Name: "h", HardLink: "l", Mode: 0o6777})},
		"hard link outside":          {file(snapshottest.File{Name: "h", HardLink: up + victim, Mode: 0o6777})},
		"file below a link":          {file(snapshottest.File{Name: "d", Link: node}, snapshottest.File{Name: "d/victim", Body: "theirs"})},
		"file below another layer's": {file(snapshottest.File{Name: "d", Link: up + node}), file(snapshottest.File{Name: "d/victim", Body: "theirs", Mode: 0o6777})},
		"directory becomes a link":   {file(snapshottest.File{Name: "d/"}), file(snapshottest.File{Name: "d", Link: node}), file(snapshottest.File{Name: "d/victim", Body: "theirs"})},
		"whiteout below a link":      {file(snapshottest.File{Name: "d", Link: node}), file(snapshottest.File{Name: "d/.wh.victim"}, snapshottest.File{Name: "d/.wh..wh..opq"})},
		"path upwards":               {file(snapshottest.File{Name: up + strings.TrimPrefix(victim, "/"), Body: "theirs"})},
	} {
		ref := h.serve(digest.FromString(what).Encoded()[:8], ocispec.MediaTypeImageManifest, h.image(layers...))
		img, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
		if err == nil {
			err = s.RemoveImage(t.Context(), img.ID)
		}
		t.Logf("%s: %v", what, err) // either is right
		var st unix.Stat_t
		if err := unix.Lstat(victim, &st); err != nil || st.Mode&0o7777 != 0o600 || st.Nlink != 1 {
			t.Fatalf("%s: mode %o, %d links, %v", what, st.Mode, st.Nlink, err)
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
			t.Fatalf("%s: %q, %v", what, b, err)
		}
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

// TestCVE_2021_41190 serves documents that are an index as well as a manifest.
func TestCVE_2021_41190(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	m := h.image(snapshottest.Tar(t, snapshottest.File{Name: "f"}))
	both := map[string]any{"schemaVersion": 2, "config": m.Config, "layers": m.Layers, "manifests": []ocispec.Descriptor{m.Config}}
	for tag, mediaType := range map[string]string{"m": ocispec.MediaTypeImageManifest, "i": ocispec.MediaTypeImageIndex} {
		h.refused(s, h.serve(tag, mediaType, both), "")
	}
	both["mediaType"] = ocispec.MediaTypeImageIndex
	h.refused(s, h.serve("x", ocispec.MediaTypeImageManifest, both), "")
}

// TestCVE_2021_20291 serves layers that are no archives: the pull fails, and the next one
// succeeds.
func TestCVE_2021_20291(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	good := snapshottest.Tar(t, snapshottest.File{Name: "f", Body: strings.Repeat("x", 1<<16)})
	for tag, body := range map[string][]byte{"junk": bytes.Repeat([]byte("junk"), 1<<12), "cut": good[:1<<15]} {
		h.refused(s, h.serve(tag, ocispec.MediaTypeImageManifest, h.image(body)), "")
	}
	if _, err := s.Pull(t.Context(), h.serve("good", ocispec.MediaTypeImageManifest, h.image(good)), nil, snapshot.PullOptions{}); err != nil {
		t.Error(err)
	}
}

// TestCVE_2023_25153 serves documents that are larger than any real one, and has another
// client of containerd leave one in the store: none is read into memory. So it is for
// all of an image that is read there: index, manifest and configuration.
func TestCVE_2023_25153(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	huge := bytes.Repeat([]byte(" "), 5<<20)
	m := h.image(snapshottest.Tar(t, snapshottest.File{Name: "f"}))
	good := m.Config
	m.Config = h.blob(ocispec.MediaTypeImageConfig, append(bytes.Clone(huge), h.blobs[good.Digest.String()]...))
	h.refused(s, h.serve("config", ocispec.MediaTypeImageManifest, m), "more than 4194304")
	m.Config = good
	h.serve("below", ocispec.MediaTypeImageManifest, append(bytes.Clone(huge), mustJSON(t, m)...))
	below := h.manifests["below"].body
	h.refused(s, h.serve("index", ocispec.MediaTypeImageIndex, ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(below), Size: int64(len(below))},
	}}), "more than 4194304")
	h.refused(s, h.host+"/hostile:below", "")

	// A configuration that says it is small: the store keeps to what was said.
	m.Config = h.blob(ocispec.MediaTypeImageConfig, append(bytes.Clone(huge), 'x'))
	m.Config.Size = 100
	h.refused(s, h.serve("liar", ocispec.MediaTypeImageManifest, m), "")

	fine := h.image(snapshottest.Tar(t, snapshottest.File{Name: "f"}))
	img, err := s.Pull(t.Context(), h.serve("fine", ocispec.MediaTypeImageManifest, fine), nil, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	snapshot.PutImage(t.Context(), t, s, "by.another/client:1", append(bytes.Clone(huge), mustJSON(t, fine)...))
	list, err := s.Images(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != img.ID {
		t.Errorf("listed: %v, %v", list, err)
	}
}

// TestCVE_2026_53493 serves a manifest with more layers than any image has, and an index
// of many manifests: both are refused or left alone, within bounds.
func TestCVE_2026_53493(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	var asked atomic.Int64
	h.before = func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false }
	const many = 12_000
	layers := slices.Repeat([][]byte{snapshottest.Tar(t, snapshottest.File{Name: "f"})}, many)
	h.refused(s, h.serve("layers", ocispec.MediaTypeImageManifest, h.image(layers...)), "12000 layers, more than 500")
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	for i := range many {
		d := digest.FromString(fmt.Sprint(i))
		index.Manifests = append(index.Manifests, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: 100, Platform: h.platform()})
	}
	asked.Store(0)
	h.refused(s, h.serve("index", ocispec.MediaTypeImageIndex, index), "")
	if n := asked.Load(); n > 100 {
		t.Errorf("%d requests for an index of which one entry is wanted", n)
	}
}

// TestCVE_2026_53495 unpacks a layer that marks one directory as opaque over and over:
// that takes no longer than the entries themselves.
func TestCVE_2026_53495(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	const many = 15_000
	files := make([]snapshottest.File, 0, 2*many)
	for i := range many {
		files = append(files, snapshottest.File{Name: fmt.Sprintf("d/%d", i)})
	}
	for range many {
		files = append(files, snapshottest.File{Name: "d/.wh..wh..opq"})
	}
	ctx, cancel := context.WithTimeout(t.Context(), enough)
	defer cancel()
	ref := h.serve("t", ocispec.MediaTypeImageManifest, h.image(snapshottest.Tar(t, snapshottest.File{Name: "d/"}), snapshottest.Tar(t, files...)))
	if _, err := s.Pull(ctx, ref, nil, snapshot.PullOptions{}); err != nil {
		t.Error(err)
	}
}

// TestCVE_2020_15157 serves an image whose layer is said to lie at another server: that one
// sees no credentials, whether it asks for some or not (also GHSA-rp3h-jf77-q9p4).
func TestCVE_2020_15157(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	body := snapshottest.Tar(t, snapshottest.File{Name: "f"})
	var mu sync.Mutex
	var heard []string
	for _, asks := range []bool{true, false} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			heard = append(heard, r.Header.Get("Authorization")+r.Header.Get("Cookie"))
			mu.Unlock()
			if asks && r.Header.Get("Authorization") == "" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = w.Write(body)
		}))
		t.Cleanup(other.Close)
		h.before = func(w http.ResponseWriter, r *http.Request) bool {
			if u, p, ok := r.BasicAuth(); ok && u == "u" && p == "p" {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		m := h.image(body)
		m.Layers[0].URLs = []string{other.URL + "/layer"}
		ref := h.serve(fmt.Sprint(asks), ocispec.MediaTypeImageManifest, m)
		if _, err := s.Pull(t.Context(), ref, &snapshot.Auth{Username: "u", Password: "p"}, snapshot.PullOptions{}); err != nil && !asks {
			t.Error(err)
		}
		if err := s.RemoveImage(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(heard) < 2 || strings.Join(heard, "") != "" {
		t.Errorf("the other servers heard %q", heard)
	}
}

// TestCVE_2026_95839 serves layers that do not end, and sizes that cannot be: the pull ends
// by itself, having taken little more than what was announced. This and the next two tests
// are for the security fixes of containerd 2.4.2.
func TestCVE_2026_95839(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	var sent atomic.Int64
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := bytes.Repeat([]byte("A"), 1<<16)
		for {
			n, err := w.Write(chunk)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(endless.Close)
	body := snapshottest.Tar(t, snapshottest.File{Name: "f"})
	for tag, change := range map[string]func(*ocispec.Descriptor){
		"endless":  func(d *ocispec.Descriptor) { d.URLs = []string{endless.URL + "/l"} },
		"negative": func(d *ocispec.Descriptor) { d.Size = -1 },
		"least":    func(d *ocispec.Descriptor) { d.Size = -1 << 63 },
	} {
		m := h.image(body)
		change(&m.Layers[0])
		ctx, cancel := context.WithTimeout(t.Context(), enough)
		_, err := s.Pull(ctx, h.serve(tag, ocispec.MediaTypeImageManifest, m), nil, snapshot.PullOptions{})
		if err == nil && tag != "endless" || ctx.Err() != nil {
			t.Errorf("%s: %v", tag, errors.Join(err, ctx.Err()))
		}
		cancel()
		if err := s.RemoveImage(t.Context(), h.host+"/hostile:"+tag); err != nil {
			t.Error(err)
		}
	}
	if n := sent.Load(); n == 0 || n > 64<<20 {
		t.Errorf("%d bytes of the endless layer were taken", n)
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

// TestMalformedDigests serves digests that are none: nothing panics, and none becomes a
// path (GHSA-8647-2jxj-p2rc, GHSA-hc94-p972-ch66; CVE-2024-3727 of another library).
func TestMalformedDigests(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	for i, bad := range []digest.Digest{"", "sha256:abc", "nocolon", "sha256:" + digest.Digest(strings.Repeat("../", 20)) + "etc/passwd", "sha256:" + digest.Digest(strings.Repeat("G", 64))} {
		body := snapshottest.Tar(t, snapshottest.File{Name: "f"})
		layer, config, subject := h.image(body), h.image(body), h.image(body)
		layer.Layers[0].Digest = bad
		config.Config.Digest = bad
		subject.Subject = &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: bad, Size: 100}
		for name, m := range map[string]ocispec.Manifest{"layer": layer, "config": config} {
			h.refused(s, h.serve(fmt.Sprint(name, i), ocispec.MediaTypeImageManifest, m), "")
		}
		ref := h.serve(fmt.Sprint("subject", i), ocispec.MediaTypeImageManifest, subject)
		_, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
		t.Logf("subject %q: %v", bad, err) // either is right
		if err := s.RemoveImage(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

// TestReferencesStayHome pulls references that climb out of their registry or repository.
func TestReferencesStayHome(t *testing.T) {
	s := snapshottest.New(t)
	for _, ref := range []string{
		"a.example/../b.example/c:1", "a.example/b/../../c:1", "a.example/b:../c", "../c:1", "a.example/b@sha256:../../c", "a.example/b%2f..%2fc:1", "a.example//c:1",
	} {
		if _, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

// TestLayerAnnotations serves layers with annotations that snapshotters act on: they are
// not the image's to set (GHSA-5p7c-hggf-c748).
func TestLayerAnnotations(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	m := h.image(snapshottest.Tar(t, snapshottest.File{Name: "f", Body: "x", UID: 7}))
	m.Layers[0].Annotations = map[string]string{
		"containerd.io/snapshot/uidmapping": "0:200000:65536", "containerd.io/snapshot/gidmapping": "0:200000:65536",
		"containerd.io/snapshot.ref": "x", "containerd.io/gc.root": "x",
	}
	img, err := s.Pull(t.Context(), h.serve("t", ocispec.MediaTypeImageManifest, m), nil, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(mounted(t, s, img), "f"), &st); err != nil || st.Uid != 7 || st.Gid != 0 {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
}

// TestCVE_2022_24778 serves encrypted layers: there is nothing that could check a key, so
// such an image is not usable at all.
func TestCVE_2022_24778(t *testing.T) {
	h, s := newHostile(t), snapshottest.New(t)
	for i, mediaType := range []string{"application/vnd.oci.image.layer.v1.tar+encrypted", "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"} {
		m := h.image(snapshottest.Tar(t, snapshottest.File{Name: "f"}))
		m.Layers[0].MediaType = mediaType
		h.refused(s, h.serve(fmt.Sprint(i), ocispec.MediaTypeImageManifest, m), "encrypted images are not supported")
	}
}
