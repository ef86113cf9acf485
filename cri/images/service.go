// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package images is the CRI's image service over the store of package snapshot.
package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/sandflow-cri/sandflow/cri/pieces"
	"github.com/sandflow-cri/sandflow/snapshot"
)

// Workflow and flow under whose limit images are pulled.
const (
	Workflow = "image"
	Pull     = "pull"
)

// Store is what the service needs of snapshot.Store, which implements it.
type Store interface {
	Pull(ctx context.Context, ref string, auth *snapshot.Auth, o snapshot.PullOptions) (snapshot.Image, error)
	Images(ctx context.Context) ([]snapshot.Image, error)
	Image(ctx context.Context, ref string) (snapshot.Image, error)
	RemoveImage(ctx context.Context, ref string) error
	ImageFS(ctx context.Context) (snapshot.FS, error)
	ContainerFS(ctx context.Context) (snapshot.FS, error)
}

// Jobber runs a job under the limit of its flow; the engine implements it.
type Jobber interface {
	Job(ctx context.Context, workflow, flow, id string, fn func(context.Context) error) error
}

// Service implements the CRI's image service.
type Service struct {
	cri.UnimplementedImageServiceServer

	store    Store
	jobs     Jobber
	handlers func(handler string) (snapshotter string, ok bool)
}

// Option of a Service.
type Option func(*Service)

// WithHandlers makes pulls for a runtime handler unpack into a snapshotter of its own,
// whose name f gives, or "" for the store's; ok is false if there is no such handler.
func WithHandlers(f func(handler string) (snapshotter string, ok bool)) Option {
	return func(s *Service) { s.handlers = f }
}

// New returns the service.
func New(store Store, jobs Jobber, opts ...Option) *Service {
	s := &Service{store: store, jobs: jobs, handlers: func(string) (string, bool) { return "", true }}
	for _, o := range opts {
		o(s)
	}
	return s
}

// ListImages lists the images, or the one that the filter names.
func (s *Service) ListImages(ctx context.Context, r *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	list, err := s.list(ctx, r.GetFilter().GetImage().GetImage())
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	reply := &cri.ListImagesResponse{Images: make([]*cri.Image, 0, len(list))}
	for _, img := range list {
		reply.Images = append(reply.Images, toCRI(img))
	}
	return reply, nil
}

// StreamImages is ListImages in pieces.
func (s *Service) StreamImages(r *cri.StreamImagesRequest, out cri.ImageService_StreamImagesServer) error {
	list, err := s.list(out.Context(), r.GetFilter().GetImage().GetImage())
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	items := func(yield func(*cri.Image) bool) {
		for _, img := range list {
			if !yield(toCRI(img)) {
				return
			}
		}
	}
	return pieces.Send(out.Context(), items, func(piece []*cri.Image) error {
		return out.Send(&cri.StreamImagesResponse{Images: piece})
	})
}

func (s *Service) list(ctx context.Context, ref string) ([]snapshot.Image, error) {
	if ref == "" {
		return s.store.Images(ctx)
	}
	img, err := s.store.Image(ctx, ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return []snapshot.Image{img}, err
}

// ImageStatus describes an image; the reply to an unknown one has none. The
// verbose info is a JSON object under "info".
func (s *Service) ImageStatus(ctx context.Context, r *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	ref, err := refOf(r)
	if err != nil {
		return nil, fmt.Errorf("status of an image: %w", err)
	}
	img, err := s.store.Image(ctx, ref)
	if errdefs.IsNotFound(err) {
		return &cri.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("status of image %q: %w", ref, err)
	}
	reply := &cri.ImageStatusResponse{Image: toCRI(img)}
	if r.GetVerbose() {
		if reply.Info, err = info(img); err != nil {
			return nil, fmt.Errorf("status of image %q: %w", ref, err)
		}
	}
	return reply, nil
}

// PullImage pulls an image and returns its ID. Errors: InvalidArgument for a
// bad reference or what is not an image, NotFound, Unauthenticated,
// PermissionDenied and ResourceExhausted as the registry says, and kubelet's
// RegistryUnavailable if it cannot be reached.
func (s *Service) PullImage(ctx context.Context, r *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	ref, err := refOf(r)
	if err != nil {
		return nil, fmt.Errorf("pull an image: %w", err)
	}
	snapshotter, ok := s.handlers(r.GetImage().GetRuntimeHandler())
	if !ok {
		return nil, fmt.Errorf("pull image %q: image.runtime_handler: %q is not configured: %w", ref, r.GetImage().GetRuntimeHandler(), errdefs.ErrInvalidArgument)
	}
	o := snapshot.PullOptions{Snapshotter: snapshotter}
	var img snapshot.Image
	err = s.jobs.Job(ctx, Workflow, Pull, ref, func(ctx context.Context) error {
		var err error
		img, err = s.store.Pull(ctx, ref, authOf(r.GetAuth()), o)
		return err
	})
	if err != nil {
		return nil, pullError(ref, err)
	}
	return &cri.PullImageResponse{ImageRef: img.ID}, nil
}

// RemoveImage removes an image with all its names; an absent one is success.
func (s *Service) RemoveImage(ctx context.Context, r *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	ref, err := refOf(r)
	if err != nil {
		return nil, fmt.Errorf("remove an image: %w", err)
	}
	if err := s.store.RemoveImage(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("remove image %q: %w", ref, err)
	}
	return &cri.RemoveImageResponse{}, nil
}

// ImageFsInfo tells what the unpacked images take of their file system, and what
// containers have written to theirs, which is the same one.
func (s *Service) ImageFsInfo(ctx context.Context, _ *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	of, err := s.store.ImageFS(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure the file system of the images: %w", err)
	}
	written, err := s.store.ContainerFS(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure the file system of the containers: %w", err)
	}
	return &cri.ImageFsInfoResponse{
		ImageFilesystems:     []*cri.FilesystemUsage{usage(of)},
		ContainerFilesystems: []*cri.FilesystemUsage{usage(written)},
	}, nil
}

func usage(fs snapshot.FS) *cri.FilesystemUsage {
	return &cri.FilesystemUsage{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &cri.FilesystemIdentifier{Mountpoint: fs.Mountpoint},
		UsedBytes:  &cri.UInt64Value{Value: unsigned(fs.Bytes)},
		InodesUsed: &cri.UInt64Value{Value: unsigned(fs.Inodes)},
	}
}

func refOf(r interface{ GetImage() *cri.ImageSpec }) (string, error) {
	ref := r.GetImage().GetImage()
	if ref == "" {
		return "", fmt.Errorf("no image is named: %w", errdefs.ErrInvalidArgument)
	}
	return ref, nil
}

func authOf(a *cri.AuthConfig) *snapshot.Auth {
	if a == nil {
		return nil
	}
	return &snapshot.Auth{
		Username:      a.GetUsername(),
		Password:      a.GetPassword(),
		Auth:          a.GetAuth(),
		ServerAddress: a.GetServerAddress(),
		IdentityToken: a.GetIdentityToken(),
		RegistryToken: a.GetRegistryToken(),
	}
}

// pullError says what could not be pulled. Kubelet tells a registry out of reach
// by the first word of an error without a gRPC code (k8s.io/cri-api/pkg/errors).
func pullError(ref string, err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w: pull image %q: %s", crierrors.ErrRegistryUnavailable, ref, err.Error())
	}
	return fmt.Errorf("pull image %q: %w", ref, err)
}

func unreachable(err error) bool {
	if errdefs.IsUnavailable(err) {
		return true
	}
	_, network := errors.AsType[*net.OpError](err)
	return network && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func unsigned(n int64) uint64 {
	return uint64(max(n, 0))
}
