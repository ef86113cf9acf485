// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxDocument bounds an image's index, manifest and configuration, in bytes: they are read
// into memory whole, and are the image author's to write. Registries take 4 MiB at most.
const maxDocument = 4 << 20

func isDocument(mediaType string) bool {
	return images.IsIndexType(mediaType) || images.IsManifestType(mediaType) || images.IsConfigType(mediaType)
}

func tooLarge(desc ocispec.Descriptor, size int64) error {
	return fmt.Errorf("%s of type %q has %d bytes, more than %d: %w", desc.Digest, desc.MediaType, size, maxDocument, errdefs.ErrInvalidArgument)
}

// documents reads the documents of images and refuses to read what is too large for one,
// also if another client of containerd brought it.
type documents struct{ content.Provider }

func (d documents) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := d.Provider.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	if size := r.Size(); size > maxDocument {
		_ = r.Close() // nothing was read
		return nil, tooLarge(desc, size)
	}
	return r, nil
}
