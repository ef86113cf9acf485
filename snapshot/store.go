// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// StorePlugin is the type of the plugin that carries the *Store. Plugins of ours
// that need the store list it in Requires and get it with ic.GetSingle.
const StorePlugin plugin.Type = "io.sandflow.store.v1"

// Config says which containerd to use and how.
type Config struct {
	// Address of an existing containerd's socket; empty: containerd runs inside this process.
	Address string
	// Root and State are the embedded containerd's own directories.
	Root, State string
	// Socket is where the embedded containerd serves its API; empty: <State>/containerd.sock.
	Socket string
	// Namespace of images, snapshots and leases (default k8s.io).
	Namespace string
	// Snapshotter used where the caller names none (default overlayfs).
	Snapshotter string
	// RegistryConfigPath is the directory (or several, separated by ":") of hosts.toml files.
	RegistryConfigPath string
	// SandboxImage is reported as pinned.
	SandboxImage string
	// Plugins is handed to containerd's plugins table (plugin URI to its table).
	Plugins map[string]any
	// MaxPulls is how many images are pulled at a time; more wait. 0 is unlimited.
	MaxPulls int
	// PullProgressTimeout ends a pull that has received nothing for so long; 0: never.
	PullProgressTimeout time.Duration
	// RequiredPlugins are URIs of plugins without which Start fails.
	RequiredPlugins []string
	// Path is put in front of the process's PATH.
	Path string
}

// Image is what the store knows of one image: one per configuration digest.
type Image struct {
	// ID is the digest of the image's configuration.
	ID string
	// Names are the records in containerd's image store, sorted.
	Names []string
	// RepoTags (repository:tag) and RepoDigests (repository@digest), sorted.
	RepoTags, RepoDigests []string
	// Size in bytes of manifest, configuration and compressed layers.
	Size int64
	Spec ocispec.Image
	// ChainID is the key of the unpacked image's snapshot; empty for an image without layers.
	ChainID string
	Pinned  bool
	Target  ocispec.Descriptor
	// Labels of the image's records in containerd's store (not those of the image's configuration).
	Labels map[string]string
}

// Auth is what a PullImage request carries to authenticate.
type Auth struct {
	Username, Password string
	// Auth is base64 of user:password, used if Username is empty.
	Auth string
	// ServerAddress, if set, is the only host that sees the credentials.
	ServerAddress string
	IdentityToken string
	RegistryToken string
}

// PullOptions of a pull.
type PullOptions struct {
	// Snapshotter to unpack into; empty is the store's.
	Snapshotter string
	// Labels are put on the image's records.
	Labels map[string]string
}

// RootfsOptions describe a snapshot to prepare.
type RootfsOptions struct {
	// Image is an image ID or any other reference to an image in the store.
	Image string
	// Snapshotter; empty is the store's.
	Snapshotter string
	// Lease that owns the snapshot; empty: one with the snapshot's key as its ID.
	Lease string
	// ReadOnly makes a view without an upper layer.
	ReadOnly bool
	// Labels of the snapshot.
	Labels map[string]string
}

// Usage of disk space.
type Usage struct{ Bytes, Inodes int64 }

// FS is the file system that holds the images.
type FS struct {
	Mountpoint string
	Usage
}

// Store is containerd as seen by the rest of sandflow.
type Store struct{}

// Start starts containerd inside this process, or connects to the one at
// c.Address. Either way all io.sandflow.* plugins of containerd's registry are
// initialised with it: ctx's values are seen by them as ic.Context.
func Start(ctx context.Context, c Config) (*Store, error) { panic("not yet") }

// Client of containerd; its default namespace is Config.Namespace.
func (s *Store) Client() *containerd.Client { panic("not yet") }

// Context puts the store's namespace into ctx, for direct use of Client.
func (s *Store) Context(ctx context.Context) context.Context { panic("not yet") }

// Plugin returns the instance of an initialised plugin.
func (s *Store) Plugin(t plugin.Type, id string) (any, error) { panic("not yet") }

// Embedded says whether containerd runs in this process.
func (s *Store) Embedded() bool { panic("not yet") }

// Healthy returns why containerd does not serve, or nil.
func (s *Store) Healthy(ctx context.Context) error { panic("not yet") }

// Close stops the embedded containerd, or hangs up.
func (s *Store) Close() error { panic("not yet") }

// Pull fetches and unpacks an image.
func (s *Store) Pull(ctx context.Context, ref string, auth *Auth, o PullOptions) (Image, error) { panic("not yet") }

// Images lists the complete images, sorted by ID.
func (s *Store) Images(ctx context.Context) ([]Image, error) { panic("not yet") }

// Image finds an image by name, tag, digest, tag and digest, ID or unique prefix
// of an ID of at least four digits. The error is errdefs.ErrNotFound.
func (s *Store) Image(ctx context.Context, ref string) (Image, error) { panic("not yet") }

// RemoveImage removes all names of the image; an absent image is success.
func (s *Store) RemoveImage(ctx context.Context, ref string) error { panic("not yet") }

// PrepareRootfs makes (or finds) the snapshot called key and returns its mounts.
func (s *Store) PrepareRootfs(ctx context.Context, key string, o RootfsOptions) ([]mount.Mount, error) { panic("not yet") }

// RemoveRootfs removes a lease and all snapshots it owns; absent is success.
func (s *Store) RemoveRootfs(ctx context.Context, lease string) error { panic("not yet") }

// RootfsUsage is what the snapshot itself holds, without its parents.
func (s *Store) RootfsUsage(ctx context.Context, key string) (Usage, error) { panic("not yet") }

// ListRootfs lists the leases that PrepareRootfs made.
func (s *Store) ListRootfs(ctx context.Context) ([]string, error) { panic("not yet") }

// ImageFS is the file system of the default snapshotter and what images use of it.
func (s *Store) ImageFS(ctx context.Context) (FS, error) { panic("not yet") }
