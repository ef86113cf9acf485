// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

const (
	// labelKind marks our leases in containerd's store.
	labelKind = "sandflow.io/kind"
	// LabelInstance marks them with the Root of the instance that made them.
	LabelInstance = "sandflow.io/instance"
	// KindRootfs is the kind of leases made where none is named.
	KindRootfs = "rootfs"

	contentResource  = "content"
	snapshotResource = "snapshots/"
)

// PrepareRootfs makes the snapshot called key of an image, or finds it if it is
// there, and returns its mounts. A lease protects it and the image's content until
// RemoveRootfs, whether or not the image keeps its names. An image that is not
// unpacked for the snapshotter is unpacked first. The error is errdefs.ErrNotFound
// if there is no such image.
func (s *Store) PrepareRootfs(ctx context.Context, key string, o RootfsOptions) ([]mount.Mount, error) {
	ctx = s.Context(ctx)
	img, err := s.Image(ctx, o.Image)
	if err != nil {
		return nil, err
	}
	if o.Lease == "" {
		o.Lease = key
	}
	if o.Kind == "" {
		o.Kind = KindRootfs
	}
	if o.Snapshotter == "" {
		o.Snapshotter = s.config.Snapshotter
	}
	if err := s.rootfsLease(ctx, o, img); err != nil {
		return nil, fmt.Errorf("lease of snapshot %s: %w", key, err)
	}
	ctx = leases.WithLease(ctx, o.Lease)
	mounts, err := s.prepare(ctx, key, img.ChainID, o)
	if errdefs.IsNotFound(err) {
		if err := s.unpack(ctx, img, o.Snapshotter); err != nil {
			return nil, err
		}
		mounts, err = s.prepare(ctx, key, img.ChainID, o)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare snapshot %s of image %s: %w", key, img.ID, err)
	}
	return mounts, nil
}

func (s *Store) prepare(ctx context.Context, key, parent string, o RootfsOptions) ([]mount.Mount, error) {
	sn := s.client.SnapshotService(o.Snapshotter)
	create := sn.Prepare
	if o.ReadOnly {
		create = sn.View
	}
	opts := []snapshots.Opt{snapshots.WithLabels(maps.Clone(o.Labels))}
	if len(o.UIDs)+len(o.GIDs) > 0 {
		if err := s.mustRemap(ctx, o.Snapshotter); err != nil {
			return nil, err
		}
		opts = append(opts, containerd.WithUserNSRemapperLabels(o.UIDs, o.GIDs))
	}
	mounts, err := create(ctx, key, parent, opts...)
	if errdefs.IsAlreadyExists(err) {
		return sn.Mounts(ctx, key)
	}
	return mounts, err
}

// mustRemap says why the snapshotter cannot map owners: without that it would ignore the labels.
func (s *Store) mustRemap(ctx context.Context, snapshotter string) error {
	can, err := s.client.GetSnapshotterCapabilities(ctx, snapshotter)
	if err != nil {
		return fmt.Errorf("ask what snapshotter %s can do: %w", snapshotter, err)
	}
	if !slices.Contains(can, "remap-ids") {
		return fmt.Errorf("snapshotter %s cannot map owners for user namespaces here: %w", snapshotter, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// rootfsLease makes the lease with the image's content in it, in one transaction
// where containerd's database is our own.
func (s *Store) rootfsLease(ctx context.Context, o RootfsOptions, img Image) error {
	lease := func(ctx context.Context) error {
		ls := s.client.LeasesService()
		l, err := ls.Create(ctx, leases.WithID(o.Lease),
			leases.WithLabels(map[string]string{labelKind: o.Kind, LabelInstance: s.config.Root}))
		if errdefs.IsAlreadyExists(err) {
			l, err = leases.Lease{ID: o.Lease}, nil
		}
		if err != nil {
			return err
		}
		return ls.AddResource(ctx, l, leases.Resource{ID: img.Target.Digest.String(), Type: contentResource})
	}
	if s.db == nil {
		return lease(ctx)
	}
	return s.db.Update(func(tx *bbolt.Tx) error { return lease(boltutil.WithTransaction(ctx, tx)) })
}

func (s *Store) unpack(ctx context.Context, img Image, snapshotter string) error {
	if len(img.Names) == 0 {
		return fmt.Errorf("image %s: %w", img.ID, errdefs.ErrNotFound)
	}
	i, err := s.client.GetImage(ctx, img.Names[0])
	if err != nil {
		return fmt.Errorf("image %s: %w", img.ID, err)
	}
	if err := i.Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("unpack image %s: %w", img.ID, err)
	}
	return nil
}

// RemoveRootfs removes a lease and all snapshots it owns; an unknown lease is success.
// The mounts must be gone.
func (s *Store) RemoveRootfs(ctx context.Context, lease string) error {
	ctx = s.Context(ctx)
	owned, err := s.ownedSnapshots(ctx, lease)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list what lease %s owns: %w", lease, err)
	}
	var errs []error
	for _, o := range owned {
		if err := s.client.SnapshotService(o.snapshotter).Remove(ctx, o.key); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("remove snapshot %s: %w", o.key, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	s.layers.forget(lease)
	if err := s.client.LeasesService().Delete(ctx, leases.Lease{ID: lease}); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove lease %s: %w", lease, err)
	}
	s.noteRemoval()
	return nil
}

type ownedSnapshot struct{ snapshotter, key string }

func (s *Store) ownedSnapshots(ctx context.Context, lease string) ([]ownedSnapshot, error) {
	resources, err := s.client.LeasesService().ListResources(ctx, leases.Lease{ID: lease})
	if err != nil {
		return nil, err
	}
	var owned []ownedSnapshot
	for _, r := range resources {
		name, ok := strings.CutPrefix(r.Type, snapshotResource)
		// The steps of an unpack are the lease's too, but the image's.
		if ok && !isChain(r.ID) {
			owned = append(owned, ownedSnapshot{name, r.ID})
		}
	}
	return owned, nil
}

func isChain(key string) bool { return isID(key) == 1 || strings.HasPrefix(key, "extract-") }

// RootfsUsage is what the snapshot called key holds itself, without its parents. The
// error is errdefs.ErrNotFound if no lease of that name owns it. All that is in it is walked,
// and so the result is older the longer that takes: twenty times as long at most.
func (s *Store) RootfsUsage(ctx context.Context, key string) (Usage, error) {
	cache, begun := s.layers.of(key), time.Now()
	if fs, ok := cache.get(begun); ok {
		return fs.Usage, nil
	}
	u, err := s.rootfsUsage(s.Context(ctx), key)
	if err != nil {
		s.layers.forget(key)
		return Usage{}, err
	}
	cache.put(FS{Usage: u}, begun, time.Now(), 0)
	return u, nil
}

func (s *Store) rootfsUsage(ctx context.Context, key string) (Usage, error) {
	owned, err := s.ownedSnapshots(ctx, key)
	if err != nil {
		return Usage{}, fmt.Errorf("list what lease %s owns: %w", key, err)
	}
	i := slices.IndexFunc(owned, func(o ownedSnapshot) bool { return o.key == key })
	if i < 0 {
		return Usage{}, fmt.Errorf("snapshot %s: %w", key, errdefs.ErrNotFound)
	}
	u, err := s.client.SnapshotService(owned[i].snapshotter).Usage(ctx, key)
	if err != nil {
		return Usage{}, fmt.Errorf("usage of snapshot %s: %w", key, err)
	}
	return Usage{Bytes: u.Size, Inodes: u.Inodes}, nil
}

// layerUse are the usages of snapshots by key. Its lock is not held while measuring.
type layerUse struct {
	mu    sync.Mutex
	byKey map[string]*usageCache
}

func (l *layerUse) of(key string) *usageCache {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byKey == nil {
		l.byKey = map[string]*usageCache{}
	}
	c, ok := l.byKey[key]
	if !ok {
		c = &usageCache{}
		l.byKey[key] = c
	}
	return c
}

func (l *layerUse) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byKey, key)
}

// ListRootfs lists the leases of kind KindRootfs that this instance made.
func (s *Store) ListRootfs(ctx context.Context) ([]string, error) {
	return s.ListLeases(ctx, KindRootfs)
}

// ListLeases lists the leases of a kind that this instance made.
func (s *Store) ListLeases(ctx context.Context, kind string) ([]string, error) {
	list, err := s.client.LeasesService().List(s.Context(ctx), fmt.Sprintf("labels.%s==%s,labels.%s==%s",
		strconv.Quote(labelKind), strconv.Quote(kind), strconv.Quote(LabelInstance), strconv.Quote(s.config.Root)))
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	ids := make([]string, 0, len(list))
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	slices.Sort(ids)
	return ids, nil
}

// dropStaleLeases removes the leases of pulls that a crash ended.
func (s *Store) dropStaleLeases(ctx context.Context) error {
	ids, err := s.ListLeases(ctx, kindPull)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := s.client.LeasesService().Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}
