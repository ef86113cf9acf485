// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Registry is a registry that has the built images under their repositories,
// whatever the registry host they are asked for at.
type Registry struct {
	// Addr is host:port.
	Addr string
	// Digest is the digest of the image in DigestRepository.
	Digest v1.Hash

	server *http.Server
	done   chan error
}

// Serve starts a registry on loopback with the images that Build left under dir.
func Serve(ctx context.Context, dir string) (*Registry, error) {
	return ServeAt(ctx, dir, "127.0.0.1:0")
}

// ServeAt does the same at another address, host:port.
func ServeAt(ctx context.Context, dir, address string) (*Registry, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("could not listen for the image registry: %w", err)
	}
	quiet := registry.Logger(log.New(io.Discard, "", 0))
	r := &Registry{
		Addr:   l.Addr().String(),
		server: &http.Server{Handler: whole(registry.New(quiet)), ReadHeaderTimeout: time.Minute},
		done:   make(chan error, 1),
	}
	go func() { r.done <- r.server.Serve(l) }()
	if err := r.Add(ctx, dir); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Add puts the images that Build or BuildKubernetes left under dir into the registry.
func (r *Registry) Add(ctx context.Context, dir string) error {
	if err := r.fill(ctx, dir); err != nil {
		return fmt.Errorf("could not fill the image registry: %w", err)
	}
	return nil
}

// Close stops the registry.
func (r *Registry) Close() error {
	err := r.server.Close()
	if served := <-r.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func (r *Registry) fill(ctx context.Context, dir string) error {
	index, err := layout.ImageIndexFromPath(Layout(dir))
	if err != nil {
		return err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			return err
		}
		_, repo, _ := strings.Cut(d.Annotations[nameAnnotation], "/")
		if strings.HasPrefix(repo, DigestRepository+":") {
			r.Digest = d.Digest
		}
		ref, err := r.reference(d.Annotations[nameAnnotation])
		if err != nil {
			return err
		}
		if err := remote.Write(ref, img, remote.WithContext(ctx)); err != nil {
			return fmt.Errorf("%s: %w", repo, err)
		}
	}
	return nil
}

// reference is where this registry has an image.
func (r *Registry) reference(image string) (name.Reference, error) {
	_, repo, _ := strings.Cut(image, "/")
	return name.ParseReference(r.Addr+"/"+repo, name.Insecure)
}

// WriteHosts writes dir/_default/hosts.toml, which sends every pull to this registry.
func (r *Registry) WriteHosts(dir string) error {
	dir = filepath.Join(dir, "_default")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+r.Addr, "http://"+r.Addr)
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)
}

// Digest is the digest of an image that Build or BuildKubernetes left under dir.
func Digest(dir, image string) (v1.Hash, error) {
	index, err := layout.ImageIndexFromPath(Layout(dir))
	if err != nil {
		return v1.Hash{}, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	for _, d := range manifest.Manifests {
		if d.Annotations[nameAnnotation] == image {
			return d.Digest, nil
		}
	}
	return v1.Hash{}, fmt.Errorf("there is no image %s in %s", image, dir)
}

// archive writes the files of a directory as a tar archive.
func archive(dir, to string) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return w.Close()
}

// whole has a registry give blobs whole, which clients have to be content with: it answers a range
// without an end, by which an interrupted download is resumed, with an error.
func whole(registry http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Header.Get("Range"), "-") {
			r.Header.Del("Range")
		}
		registry.ServeHTTP(w, r)
	})
}
