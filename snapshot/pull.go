// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/klog/v2"
)

const (
	// layersAtOnce is how many layers of one image are fetched at a time.
	layersAtOnce = 3
	// cleanupTime bounds the removal of what a failed pull fetched.
	cleanupTime = 30 * time.Second
	kindPull    = "pull"
)

// Pull fetches ref from its registry (or the mirrors that hosts.toml names) and
// unpacks it for this machine's platform. Callers who want the same image share one
// pull. A pull that fails or is cancelled by its last caller leaves nothing.
//
// Errors: errdefs.ErrInvalidArgument for a bad reference or what is not an image,
// ErrNotFound, ErrUnauthenticated, ErrPermissionDenied and ErrResourceExhausted as
// the registry says, ErrUnavailable if it does not answer or stalls.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth, o PullOptions) (Image, error) {
	named, err := normalize(ref)
	if err != nil {
		return Image{}, err
	}
	creds, err := newCredentials(auth)
	if err != nil {
		return Image{}, err
	}
	if o.Snapshotter == "" {
		o.Snapshotter = s.config.Snapshotter
	}
	img, err := s.pulls.do(ctx, s.ctx, newPullKey(named.String(), auth, o), func(ctx context.Context) (Image, error) {
		return s.pull(ctx, named, creds, o)
	})
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", named, err)
	}
	return img, nil
}

func (s *Store) pull(ctx context.Context, named reference.Named, creds *credentials, o PullOptions) (_ Image, err error) {
	if s.slots != nil {
		if err := s.slots.Acquire(ctx, 1); err != nil {
			return Image{}, context.Cause(ctx)
		}
		defer s.slots.Release(1)
	}
	ctx, release, err := s.pullLease(s.Context(ctx))
	if err != nil {
		return Image{}, err
	}
	defer func() { release(err) }()
	p := newProgress(s.config.PullProgressTimeout)
	guarded, stop := p.guard(ctx)
	defer stop()
	img, err := s.client.Pull(guarded, named.String(),
		containerd.WithResolver(s.resolver(guarded, creds, p)),
		containerd.WithPullUnpack,
		containerd.WithPullSnapshotter(o.Snapshotter),
		containerd.WithPullLabels(o.Labels),
		containerd.WithMaxConcurrentDownloads(layersAtOnce),
		containerd.WithImageHandlerWrapper(onlyImages),
		containerd.WithUnpackOpts([]containerd.UnpackOpt{containerd.WithUnpackDuplicationSuppressor(&s.blobs)}),
	)
	if err != nil {
		if guarded.Err() != nil {
			return Image{}, context.Cause(guarded)
		}
		return Image{}, registryError(err)
	}
	return s.keep(ctx, named, img.Target(), o)
}

// keep records the pulled image also by its digest and its ID. These names stay when
// the tag moves on, so that kubelet still sees what its containers use.
func (s *Store) keep(ctx context.Context, named reference.Named, target ocispec.Descriptor, o PullOptions) (Image, error) {
	m, err := s.readManifest(ctx, target)
	if err != nil {
		return Image{}, fmt.Errorf("read the image's configuration: %w", err)
	}
	names := []string{named.Name() + "@" + target.Digest.String(), m.config.String()}
	for _, name := range names {
		if err := s.record(ctx, images.Image{Name: name, Target: target, Labels: maps.Clone(o.Labels)}); err != nil {
			return Image{}, err
		}
	}
	s.view.changed()
	img, err := s.Image(ctx, m.config.String())
	if errdefs.IsNotFound(err) {
		// Removed again already, which is not the pull's failure.
		img = m.image(target)
		img.Names, img.RepoDigests = names, names[:1]
		return img, nil
	}
	return img, err
}

// record makes an image record, or lets it point to another target.
func (s *Store) record(ctx context.Context, img images.Image) error {
	store := s.client.ImageService()
	for {
		_, err := store.Create(ctx, img)
		if errdefs.IsAlreadyExists(err) {
			// Gone between the two calls: make it after all.
			if _, err = store.Update(ctx, img, "target", "labels"); errdefs.IsNotFound(err) {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("record image %s: %w", img.Name, err)
		}
		return nil
	}
}

// pullLease protects what a pull fetches until its records are made. When the pull
// failed, releasing it waits until what it fetched is collected.
func (s *Store) pullLease(ctx context.Context) (context.Context, func(error), error) {
	const day = 24 * time.Hour
	lease, err := s.client.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(day),
		leases.WithLabels(map[string]string{labelKind: kindPull, LabelInstance: s.config.Root}))
	if err != nil {
		return nil, nil, fmt.Errorf("take a lease: %w", err)
	}
	release := func(failed error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		var opts []leases.DeleteOpt
		if failed != nil {
			opts = append(opts, leases.SynchronousDelete)
		}
		if err := s.client.LeasesService().Delete(ctx, lease, opts...); err != nil && !errdefs.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Could not give back the lease of a pull; it expires in a day", "lease", lease.ID)
		}
	}
	return leases.WithLease(ctx, lease.ID), release, nil
}

// onlyImages refuses what is not an image, with a message that names the media
// type or platform, before containerd fails on it in its own way, and documents that
// are too large before they are fetched: the content store keeps to the size that the
// descriptor tells.
func onlyImages(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if isDocument(desc.MediaType) && desc.Size > maxDocument {
			return nil, tooLarge(desc, desc.Size)
		}
		children, err := h.Handle(ctx, desc)
		switch {
		case images.IsIndexType(desc.MediaType):
			if errdefs.IsNotFound(err) || (err == nil && len(children) == 0) {
				return nil, fmt.Errorf("the image's index %s has nothing for platform %s: %w",
					desc.Digest, platforms.Format(platforms.DefaultSpec()), errdefs.ErrNotFound)
			}
		case err != nil:
		case images.IsManifestType(desc.MediaType):
			return children, checkManifest(desc, children)
		case len(children) == 0 && !images.IsLayerType(desc.MediaType) && !images.IsConfigType(desc.MediaType):
			return nil, fmt.Errorf("not an image: media type %q of %s: %w", desc.MediaType, desc.Digest, errdefs.ErrInvalidArgument)
		}
		return children, err
	})
}

// maxLayers is how many directories the kernel stacks (OVL_MAX_STACK). Unpacking takes
// time by the square of the layers, so that it must not find out by itself.
const maxLayers = 500

// checkManifest looks at what images.Children returned: the configuration, then the layers.
func checkManifest(desc ocispec.Descriptor, children []ocispec.Descriptor) error {
	if n := len(children) - 1; n > maxLayers {
		return fmt.Errorf("manifest %s has %d layers, more than %d: %w", desc.Digest, n, maxLayers, errdefs.ErrInvalidArgument)
	}
	for i, c := range children {
		switch {
		case i == 0 && !images.IsConfigType(c.MediaType):
			return fmt.Errorf("not an image: manifest %s has a configuration of media type %q: %w", desc.Digest, c.MediaType, errdefs.ErrInvalidArgument)
		case i > 0 && !images.IsLayerType(c.MediaType):
			return fmt.Errorf("manifest %s has a layer of media type %q, which is no file system: %w", desc.Digest, c.MediaType, errdefs.ErrInvalidArgument)
		case strings.HasSuffix(c.MediaType, "+encrypted"):
			return fmt.Errorf("manifest %s has a layer of media type %q: encrypted images are not supported: %w", desc.Digest, c.MediaType, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
