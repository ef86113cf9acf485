// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 48: a layer that lies elsewhere, by the word of the manifest, is asked for there without
// the request's credentials, even if it is asked for them.
func TestCase48ForeignLayer(t *testing.T) {
	var mu sync.Mutex
	asked, leaked := 0, false
	elsewhere := snapshottest.Serve(t, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			leaked = leaked || r.Header.Get("Authorization") != ""
			w.Header().Set("WWW-Authenticate", `Basic realm="give me yours"`)
			w.WriteHeader(http.StatusUnauthorized)
		})
	})
	home := snapshottest.Serve(t, basicAuth("u", "p"))
	layer := snapshottest.Layer(t, snapshottest.File{Name: "f", Body: "x"})
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.Append(snapshottest.Image(t, v1.Config{}), mutate.Addendum{
		Layer: layer, MediaType: types.DockerForeignLayer, URLs: []string{"http://" + elsewhere.Host + "/v2/a/blobs/" + digest.String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := snapshottest.New(t)
	ref := home.Push(t, "a:t", img, remote.WithAuth(&authn.Basic{Username: "u", Password: "p"}))
	if _, err := s.Pull(t.Context(), ref, &snapshot.Auth{Username: "u", Password: "p"}, snapshot.PullOptions{}); err == nil {
		t.Error("the pull succeeded without the layer")
	}
	mu.Lock()
	defer mu.Unlock()
	if leaked {
		t.Error("the other host saw the credentials")
	}
	if asked == 0 {
		t.Error("the other host was not asked")
	}
	empty(t, s)
}
