// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Each file of the registry lies under the digest of what it holds, and what one names is there.
func TestRegistryFiles(t *testing.T) {
	l, err := layer([]file{{path: "hello", text: "hello", mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := image(v1.Config{Cmd: []string{"/hello"}}, l)
	if err != nil {
		t.Fatal(err)
	}
	files, err := registryFiles("thing", "new", img)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, f := range files {
		have[f.path] = f.text
		if path.Base(f.path) != "data" {
			continue
		}
		sum := sha256.Sum256([]byte(f.text))
		if want := hex.EncodeToString(sum[:]); path.Base(path.Dir(f.path)) != want {
			t.Errorf("%s holds %s", f.path, want)
		}
	}
	at := func(kind, digest string) string {
		hash := strings.TrimPrefix(digest, "sha256:")
		return "var/registry/thing/" + kind + "/sha256/" + hash[:2] + "/" + hash + "/data"
	}
	manifest, ok := have[at("manifests", have["var/registry/thing/manifests/new"])]
	if !ok {
		t.Fatalf("the tag names no manifest: %v", have)
	}
	m, err := v1.ParseManifest(strings.NewReader(manifest))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range append(m.Layers, m.Config) {
		if _, ok := have[at("blobs", d.Digest.String())]; !ok {
			t.Errorf("blob %s is missing", d.Digest)
		}
	}
	if len(files) != 4 {
		t.Errorf("%d files, not the tag, the manifest, the configuration and a layer", len(files))
	}
}
