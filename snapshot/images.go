// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Images lists the complete images, sorted by ID.
func (s *Store) Images(ctx context.Context) ([]Image, error) {
	p, err := s.view.look(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]Image, 0, len(p.images))
	for _, e := range p.images {
		if e.complete {
			list = append(list, e.Image)
		}
	}
	slices.SortFunc(list, func(a, b Image) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Image finds an image by name, tag, digest, tag and digest (the digest decides),
// ID, or a unique prefix of an ID of at least four digits. An image that lacks
// content is not found. The error is errdefs.ErrNotFound.
func (s *Store) Image(ctx context.Context, ref string) (Image, error) {
	p, err := s.view.look(ctx)
	if err != nil {
		return Image{}, err
	}
	e, err := p.find(ref)
	if err != nil {
		return Image{}, err
	}
	if !e.complete {
		return Image{}, fmt.Errorf("image %q is in the store without all its layers: %w", ref, errdefs.ErrNotFound)
	}
	return e.Image, nil
}

// RemoveImage removes the image that ref names with all its names, and frees its
// space unless a container uses it. An absent image is success.
func (s *Store) RemoveImage(ctx context.Context, ref string) error {
	p, err := s.view.look(ctx)
	if err != nil {
		return err
	}
	records := p.removable(ref)
	if len(records) == 0 {
		return nil
	}
	defer s.view.changed()
	// The record named by the ID goes last: until then the image can still be found.
	slices.SortFunc(records, func(a, b images.Image) int { return isID(a.Name) - isID(b.Name) })
	var errs []error
	for i, r := range records {
		// Only while it is still this image's: a pull may have moved the name meanwhile.
		opts := []images.DeleteOpt{images.DeleteTarget(&r.Target)}
		if i == len(records)-1 {
			opts = append(opts, images.SynchronousDelete())
		}
		if err := s.client.ImageService().Delete(s.Context(ctx), r.Name, opts...); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove image name %s: %w", r.Name, err))
		}
	}
	return errors.Join(errs...)
}

// removable returns the records that RemoveImage of ref deletes: also those of
// images that are not shown, so that nothing is left that cannot be removed.
func (p *picture) removable(ref string) []images.Image {
	if e, err := p.find(ref); err == nil {
		return slices.Clone(e.records)
	}
	if r, ok := p.broken[ref]; ok {
		return []images.Image{r}
	}
	if name, err := Normalize(ref); err == nil {
		if r, ok := p.broken[name]; ok {
			return []images.Image{r}
		}
	}
	return nil
}

func isID(name string) int {
	if _, err := digest.Parse(name); err == nil {
		return 1
	}
	return 0
}
