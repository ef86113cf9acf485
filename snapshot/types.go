// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"time"

	"github.com/containerd/plugin"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// StorePlugin is the type of the plugin that carries the *Store. Plugins of ours
// that need the store list it in Requires and get it with ic.GetSingle.
const StorePlugin plugin.Type = "io.sandflow.store.v1"

// Config says which containerd to use and how.
type Config struct {
	// Address of an existing containerd's socket; empty: containerd runs inside this process.
	Address string
	// Root and State are the embedded containerd's own directories. Root is also what
	// tells our leases from those of a second instance on the same containerd.
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
	// MirrorTimeout is how long a mirror has to begin an answer until it is passed over; 0: for ever.
	MirrorTimeout time.Duration
	// RequiredPlugins are URIs of plugins without which Start fails.
	RequiredPlugins []string
	// Path is put in front of the process's PATH, where foreign shims are looked for.
	Path string
}

// Image is what the store knows of one image: there is one per configuration digest.
// It is shared with other callers and must not be changed.
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
	// Labels of the image's records in containerd's store (not those of its configuration).
	Labels map[string]string
}

// Auth is what a PullImage request carries to authenticate.
type Auth struct {
	Username, Password string
	// Auth is base64 of user:password, used if Username is empty.
	Auth string
	// ServerAddress, if set, is the only host that sees the credentials; otherwise
	// that is the upstream registry of the reference, never a mirror.
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
	// Kind of the lease, for ListLeases; empty is "rootfs".
	Kind string
	// ReadOnly makes a view without an upper layer.
	ReadOnly bool
	// Labels of the snapshot.
	Labels map[string]string
	// UIDs and GIDs map the image's owners to those of a user namespace; empty: as they are.
	UIDs, GIDs []specs.LinuxIDMapping
}

// Usage of disk space.
type Usage struct{ Bytes, Inodes int64 }

// FS is a file system, and what some of its users take of it.
type FS struct {
	Mountpoint string
	Usage
}

// Values of the context that Start was given outlive it in the store.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(ctx))
}
