// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"compress/gzip"
	"context"
	"fmt"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// AddAgnhost puts the image Agnhost into the registry: the program agnhost on the system of
// Busybox.
func (r *Registry) AddAgnhost(ctx context.Context, program string) error {
	from, err := r.reference(Busybox)
	if err != nil {
		return err
	}
	to, err := r.reference(Agnhost)
	if err != nil {
		return err
	}
	base, err := remote.Image(from, remote.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("could not find the base of %s: %w", Agnhost, err)
	}
	files := []file{
		{path: "agnhost", from: program, mode: 0o755},
		{path: "agnhost-2", link: "agnhost", mode: 0o777},
		{path: "uploads", mode: os.ModeDir | 0o755},
	}
	// The program is large, and does not go far.
	l, err := layer(files, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(base, l)
	if err != nil {
		return err
	}
	config := v1.Config{Env: []string{pathEnv}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	if img, err = mutate.Config(img, config); err != nil {
		return err
	}
	if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("could not add %s to the registry: %w", Agnhost, err)
	}
	return nil
}
