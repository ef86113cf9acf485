// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package images builds, from Debian's packages, the images that the demo and the
// tests run, since they must work without an image registry, and serves them from a
// registry of their own on loopback.
package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// version names the recipe; a change of it has the images built anew.
	version = "3"
	// nameAnnotation is where an OCI layout keeps the full name of an image.
	nameAnnotation = "io.containerd.image.name"
	// DigestRepository is the repository that critest asks for by digest.
	DigestRepository = "k8s-staging-cri-tools/test-image-digest"
	// Busybox is the image of most tests.
	Busybox = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
	// Nginx listens on port 80.
	Nginx = "registry.k8s.io/e2e-test-images/nginx:1.14-2"
	// Pause is an image for sandbox containers.
	Pause = "registry.k8s.io/pause:3.10.1"
	// Agnhost is the image that Kubernetes' own tests use, made by AddAgnhost.
	Agnhost = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	// KubernetesBusybox is the one that most of Kubernetes' tests run, made by BuildKubernetes.
	KubernetesBusybox = "registry.k8s.io/e2e-test-images/busybox:1.37.0-2"
	// Demo is the image in the archive that Build writes: a web server and a shell.
	Demo = "sandflow.example/demo:1"
)

// Layout returns the directory of the OCI layout under dir.
func Layout(dir string) string { return filepath.Join(dir, "layout") }

// DemoArchive returns the path of the demo's image archive (OCI, as tar) under dir.
func DemoArchive(dir string) string { return filepath.Join(dir, "demo.tar") }

// Build makes all images under dir, unless this version of them is there already. It
// needs apt's package lists and gcc.
func Build(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	stamp := filepath.Join(dir, "version-"+version)
	if _, err := os.Stat(stamp); err == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	tmp, err := workDir(dir)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	p, err := gather(ctx, tmp)
	if err != nil {
		return err
	}
	all, err := p.recipes()
	if err != nil {
		return err
	}
	if err := write(Layout(dir), all); err != nil {
		return fmt.Errorf("could not write the images to %s: %w", Layout(dir), err)
	}
	if err := writeDemo(dir, tmp, all); err != nil {
		return fmt.Errorf("could not write the demo's image: %w", err)
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// workDir makes a directory to work in, below one that it makes too.
func workDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, "tmp")
	if err != nil {
		return "", err
	}
	// apt downloads as a user without rights here.
	return tmp, os.Chmod(tmp, 0o755)
}

// named is an image under one or more names.
type named struct {
	image v1.Image
	names []string
}

func write(dir string, all []named) error {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, n := range all {
		for _, name := range n.names {
			err := path.AppendImage(n.image, layout.WithAnnotations(map[string]string{nameAnnotation: name}))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// writeDemo writes the image named Demo as an archive that "ctr images import" reads.
func writeDemo(dir, tmp string, all []named) error {
	for _, n := range all {
		if n.names[0] != Demo {
			continue
		}
		index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
			Add: n.image,
			Descriptor: v1.Descriptor{Annotations: map[string]string{
				nameAnnotation:                      Demo,
				"org.opencontainers.image.ref.name": "1",
			}},
		})
		one := filepath.Join(tmp, "demo")
		if _, err := layout.Write(one, index); err != nil {
			return err
		}
		return archive(one, DemoArchive(dir))
	}
	return fmt.Errorf("no recipe for %s", Demo)
}
