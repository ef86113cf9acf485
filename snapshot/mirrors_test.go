// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ggcr "github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// asked counts the requests that a registry gets.
type asked struct {
	mu    sync.Mutex
	paths []string
}

// by is before another handler, or instead of it.
func (a *asked) by(answer func(next http.Handler, w http.ResponseWriter, r *http.Request)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a.mu.Lock()
			a.paths = append(a.paths, r.URL.Path)
			a.mu.Unlock()
			answer(next, w, r)
		})
	}
}

func (a *asked) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.paths)
}

func answers(next http.Handler, w http.ResponseWriter, r *http.Request) { next.ServeHTTP(w, r) }

func has404(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusNotFound)
}

func has500(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusInternalServerError)
}

func hangs(_ http.Handler, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// withHosts is a store for which a registry's hosts.toml is as given.
func withHosts(t *testing.T, registry, toml string) *snapshot.Store {
	t.Helper()
	dir := snapshottest.Dir(t)
	c := snapshottest.Config(dir)
	c.RegistryConfigPath = filepath.Join(dir, "certs.d")
	c.MirrorTimeout = 300 * time.Millisecond
	hosts := filepath.Join(c.RegistryConfigPath, registry)
	if err := os.MkdirAll(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	return snapshottest.Open(t, c)
}

// toml names an upstream and the mirrors before it, in order.
func toml(upstream string, mirrors ...string) string {
	text := "server = \"http://" + upstream + "\"\n"
	for _, m := range mirrors {
		text += "[host.\"http://" + m + "\"]\n"
	}
	return text
}

// refusing is an address at which nobody listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// A mirror that is down, lacks the image, fails or does not answer is passed over; one that does
// not answer is waited for once only.
func TestMirrorsArePassedOver(t *testing.T) {
	var lacking, failing, hanging, upstream asked
	up := snapshottest.Serve(t, upstream.by(answers))
	up.Push(t, "a:t", tiny(t, "one"))
	s := withHosts(t, "example.com", toml(up.Host, refusing(t), snapshottest.Serve(t, lacking.by(has404)).Host,
		snapshottest.Serve(t, failing.by(has500)).Host, snapshottest.Serve(t, hanging.by(hangs)).Host))
	img := pull(t, s, "example.com/a:t")
	if !slices.Equal(img.RepoTags, []string{"example.com/a:t"}) {
		t.Errorf("the tags are %v", img.RepoTags)
	}
	if n := len(hanging.all()); n != 1 {
		t.Errorf("the mirror that does not answer was asked %d times", n)
	}
	if len(lacking.all()) == 0 || len(failing.all()) == 0 {
		t.Error("not all mirrors were asked")
	}
	// The next pull asks again.
	if err := s.RemoveImage(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	pull(t, s, "example.com/a:t")
	if n := len(hanging.all()); n != 2 {
		t.Errorf("after the next pull the mirror was asked %d times", n)
	}
}

// What the first mirror has is taken from it alone, also when the registry itself is down.
func TestFirstMirrorIsEnough(t *testing.T) {
	var first, second asked
	one := snapshottest.Serve(t, first.by(answers))
	one.Push(t, "a:t", tiny(t, "one"))
	s := withHosts(t, "example.com", toml(refusing(t), one.Host, snapshottest.Serve(t, second.by(has500)).Host))
	pull(t, s, "example.com/a:t")
	if got := second.all(); len(got) > 0 {
		t.Errorf("another mirror was asked for %v", got)
	}
	if _, err := s.Pull(t.Context(), "example.com/other:t", nil, snapshot.PullOptions{}); err == nil {
		t.Error("what no host has was pulled")
	}
}

// Credentials may stand in hosts.toml; those of a request win at the registry itself.
func TestCredentialsOfHostsToml(t *testing.T) {
	reg := snapshottest.Serve(t, basicAuth("u", "p"))
	reg.Push(t, "a:t", tiny(t, "one"), remote.WithAuth(&authn.Basic{Username: "u", Password: "p"}))
	host := "[host.\"http://" + reg.Host + "\"]\n[host.\"http://" + reg.Host + "\".header]\nAuthorization = "
	s := withHosts(t, "example.com", toml(refusing(t))+host+"\"Basic dTpw\"\n")
	pull(t, s, "example.com/a:t")
	s = withHosts(t, "example.com", toml(refusing(t))+host+"\"Basic d3Jvbmc=\"\n")
	if _, err := s.Pull(t.Context(), "example.com/a:t", nil, snapshot.PullOptions{}); err == nil {
		t.Error("wrong credentials of hosts.toml are taken")
	}
}

// CASES 43: a short name is one of Docker Hub, and no other registry is asked for it.
func TestShortNamesAreNotGuessed(t *testing.T) {
	var hub, other asked
	reg := snapshottest.Serve(t, hub.by(answers))
	reg.Push(t, "library/short:latest", tiny(t, "one"))
	s := withHosts(t, "docker.io", toml(reg.Host))
	elsewhere := snapshottest.Serve(t, other.by(answers))
	pull(t, s, elsewhere.Push(t, "other:1", tiny(t, "two"))) // a registry that the store knows of
	before := len(other.all())
	for _, form := range []string{"short", "short:latest", "library/short", "docker.io/short", "index.docker.io/library/short:latest"} {
		if got := pull(t, s, form).RepoTags; !slices.Equal(got, []string{"docker.io/library/short:latest"}) {
			t.Errorf("%s is called %v", form, got)
		}
	}
	for _, form := range []string{"none", "team/none:1"} {
		if _, err := s.Pull(t.Context(), form, nil, snapshot.PullOptions{}); err == nil || !strings.Contains(err.Error(), "docker.io/") {
			t.Errorf("%s: %v", form, err)
		}
	}
	if got := other.all()[before:]; len(got) > 0 {
		t.Errorf("another registry was asked for %v", got)
	}
}

// Of an image for several platforms this machine's is taken, and nothing else is fetched: from
// an OCI index, and from a manifest list of schema 2.
func TestSeveralPlatforms(t *testing.T) {
	for what, kind := range map[string]types.MediaType{"index": types.OCIImageIndex, "list": types.DockerManifestList} {
		t.Run(what, func(t *testing.T) {
			var requests asked
			reg := snapshottest.Serve(t, requests.by(answers))
			s := snapshottest.New(t)
			mine, strange := tiny(t, "mine"), tiny(t, "strange")
			if kind == types.DockerManifestList {
				mine = mutate.ConfigMediaType(mutate.MediaType(mine, types.DockerManifestSchema2), types.DockerConfigJSON)
				strange = mutate.ConfigMediaType(mutate.MediaType(strange, types.DockerManifestSchema2), types.DockerConfigJSON)
			}
			index := mutate.AppendManifests(mutate.IndexMediaType(ggcr.Index, kind),
				mutate.IndexAddendum{Add: strange, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "plan9", Architecture: "mips"}}},
				mutate.IndexAddendum{Add: mine, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}},
			)
			ref, err := name.ParseReference(reg.Host + "/several:t")
			if err == nil {
				err = remote.WriteIndex(ref, index)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := len(requests.all())
			img := pull(t, s, ref.Name())
			if got := img.Spec.Config.Cmd; !slices.Equal(got, []string{"mine"}) {
				t.Errorf("it runs %v", got)
			}
			whole, err := index.Digest()
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{reg.Host + "/several@" + whole.String()}; !slices.Equal(img.RepoDigests, want) {
				t.Errorf("digests %v, want %v", img.RepoDigests, want)
			}
			for _, path := range requests.all()[before:] {
				if strings.Contains(path, digestOf(t, strange)) {
					t.Errorf("the manifest of another platform was fetched: %s", path)
				}
			}
		})
	}
}
