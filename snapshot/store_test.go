// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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

// CASES 46: those who pull one image at a time share one download, whoever leaves.
func TestJoinedPulls(t *testing.T) {
	var blobs atomic.Int32
	gate, waiting := make(chan struct{}), make(chan struct{}, 100)
	reg := snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				blobs.Add(1)
				waiting <- struct{}{}
				<-gate
			}
			h.ServeHTTP(w, r)
		})
	})
	s := snapshottest.New(t)
	ref := reg.Push(t, "a:t", tiny(t, "one"))
	leaver, leave := context.WithCancel(t.Context())
	errs := make(chan error, 9)
	go func() {
		_, err := s.Pull(leaver, ref, nil, snapshot.PullOptions{})
		errs <- err
	}()
	<-waiting
	for range 8 {
		go func() {
			_, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
			errs <- err
		}()
	}
	for snapshot.Waiters(s) < 9 {
		time.Sleep(time.Millisecond)
	}
	leave()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that left: %v", err)
	}
	close(gate)
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := blobs.Load(); n != 2 {
		t.Errorf("%d blobs were fetched, want configuration and layer", n)
	}
}

// A cancelled or stalled pull leaves nothing, and the next one works.
func TestPullEndsEarly(t *testing.T) {
	var stall atomic.Bool
	stalled := make(chan struct{}, 100)
	reg := snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if stall.Load() && strings.Contains(r.URL.Path, "/blobs/") {
				stalled <- struct{}{}
				<-r.Context().Done()
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	c := snapshottest.Config(snapshottest.Dir(t))
	c.PullProgressTimeout = 300 * time.Millisecond
	s := snapshottest.Open(t, c)
	ref := reg.Push(t, "a:t", tiny(t, "one"))
	stall.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-stalled
		cancel()
	}()
	if _, err := s.Pull(ctx, ref, nil, snapshot.PullOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled pull: %v", err)
	}
	empty(t, s)
	_, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("stalled pull: %v", err)
	}
	empty(t, s)
	stall.Store(false)
	pull(t, s, ref)
}

func basicAuth(user, password string) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

func TestAuth(t *testing.T) {
	reg := snapshottest.Serve(t, basicAuth("u", "p"))
	s := snapshottest.New(t)
	ref := reg.Push(t, "a:t", tiny(t, "one"), remote.WithAuth(&authn.Basic{Username: "u", Password: "p"}))
	for _, c := range []struct {
		what string
		auth *snapshot.Auth
		is   func(error) bool
	}{
		{"none", nil, errdefs.IsUnauthorized},
		{"empty", &snapshot.Auth{}, errdefs.IsUnauthorized},
		{"wrong password", &snapshot.Auth{Username: "u", Password: "secret"}, errdefs.IsUnauthorized},
		{"another server's", &snapshot.Auth{Username: "u", Password: "p", ServerAddress: "https://example.com"}, errdefs.IsUnauthorized},
		{"no base64", &snapshot.Auth{Auth: "!"}, errdefs.IsInvalidArgument},
		{"server address", &snapshot.Auth{Auth: "!", ServerAddress: "http://%"}, errdefs.IsInvalidArgument},
		{"good", &snapshot.Auth{Username: "u", Password: "p"}, nil},
		{"good, as base64", &snapshot.Auth{Auth: "dTpw"}, nil},
		{"good, with server", &snapshot.Auth{Username: "u", Password: "p", ServerAddress: "http://" + reg.Host + "/v2/"}, nil},
	} {
		img, err := s.Pull(t.Context(), ref, c.auth, snapshot.PullOptions{})
		switch {
		case c.is == nil && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.is != nil && (err == nil || !c.is(err)):
			t.Errorf("%s: %v", c.what, err)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: a secret is in %q", c.what, err)
		case err == nil:
			if err := s.RemoveImage(t.Context(), img.ID); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := s.Pull(t.Context(), snapshottest.Serve(t, nil).Host+"/nosuch:t", nil, snapshot.PullOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("unknown image: %v", err)
	}
	if _, err := s.Pull(t.Context(), "UPPER", nil, snapshot.PullOptions{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bad reference: %v", err)
	}
	empty(t, s)
}

// CASES 48: neither a mirror nor a redirect's target sees the request's credentials.
func TestCredentialsStayHome(t *testing.T) {
	var mu sync.Mutex
	leaked := map[string]bool{}
	listen := func(what string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				_, seen := leaked[what]
				leaked[what] = leaked[what] || r.Header.Get("Authorization") != ""
				if !seen {
					leaked[what] = r.Header.Get("Authorization") != ""
				}
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			})
		}
	}
	mirror := snapshottest.Serve(t, listen("mirror"))
	other := snapshottest.Serve(t, listen("redirect"))
	var redirect atomic.Bool
	home := snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return basicAuth("u", "p")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if redirect.Load() && r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(w, r, "http://"+other.Host+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			h.ServeHTTP(w, r)
		}))
	})
	dir := snapshottest.Dir(t)
	c := snapshottest.Config(dir)
	c.RegistryConfigPath = filepath.Join(dir, "certs.d")
	hosts := filepath.Join(c.RegistryConfigPath, "example.com")
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	toml := "server = \"http://" + home.Host + "\"\n[host.\"http://" + mirror.Host + "\"]\n"
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(toml), 0o644); err != nil {
		t.Fatal(err)
	}
	s := snapshottest.Open(t, c)
	home.Push(t, "a:t", tiny(t, "one"), remote.WithAuth(&authn.Basic{Username: "u", Password: "p"}))
	auth := &snapshot.Auth{Username: "u", Password: "p"}
	img, err := s.Pull(t.Context(), "example.com/a:t", auth, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RemoveImage(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	redirect.Store(true)
	if _, err := s.Pull(t.Context(), "example.com/a:t", auth, snapshot.PullOptions{}); err == nil {
		t.Error("the redirect's target wanted credentials and got none, yet the pull succeeded")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(leaked) != 2 || leaked["mirror"] || leaked["redirect"] {
		t.Errorf("who was asked, and saw credentials: %v", leaked)
	}
}

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
	importTar(t, ctx, other, "docker.io/library/loaded:1", tiny(t, "loaded"))
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

func importTar(t *testing.T, ctx context.Context, c *containerd.Client, ref string, img v1.Image) {
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
