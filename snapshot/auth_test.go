// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

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

// Tokens: a registry token is shown as it is, an identity token fetches one.
func TestTokens(t *testing.T) {
	var reg *snapshottest.Registry
	reg = snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/token" && r.FormValue("refresh_token") == "identity":
				_, _ = io.WriteString(w, `{"access_token":"good","token":"good"}`)
			case r.URL.Path == "/token":
				w.WriteHeader(http.StatusUnauthorized)
			case r.Header.Get("Authorization") == "Bearer good":
				h.ServeHTTP(w, r)
			default:
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+reg.Host+`/token",service="x"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
		})
	})
	s := snapshottest.New(t)
	ref := reg.Push(t, "a:t", tiny(t, "one"), remote.WithAuth(&authn.Bearer{Token: "good"}))
	for token, c := range map[string]struct {
		auth *snapshot.Auth
		ok   bool
	}{
		"registry":       {&snapshot.Auth{RegistryToken: "good"}, true},
		"identity":       {&snapshot.Auth{IdentityToken: "identity"}, true},
		"wrong registry": {&snapshot.Auth{RegistryToken: "secret"}, false},
		"wrong identity": {&snapshot.Auth{IdentityToken: "secret"}, false},
		"none":           {nil, false},
	} {
		_, err := s.Pull(t.Context(), ref, c.auth, snapshot.PullOptions{})
		if (err == nil) != c.ok || (err != nil && !errdefs.IsUnauthorized(err)) {
			t.Errorf("%s: %v", token, err)
		}
		if err := s.RemoveImage(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
}
