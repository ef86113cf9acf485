// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rootfs is the action that gives a container its root file system: a
// snapshot of its image, mounted in its directory.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs/ctrdir"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// dirName is the mount point in the container's directory, which the OCI spec
// names as root.path.
const dirName = "rootfs"

func init() {
	steps.Register("rootfs", func(s *steps.Services) engine.Action { return New(s.Config, s.Store) })
}

// Action is the action "rootfs". Snapshot and lease are called as the container,
// the mount is <ContainerDir>/rootfs.
type Action struct {
	config steps.Config
	store  *snapshot.Store
}

// New makes the action.
func New(c steps.Config, s *snapshot.Store) *Action { return &Action{config: c, store: s} }

// Needs of Do.
func (*Action) Needs() []engine.Key {
	return []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key()}
}

// Fills the container's rootfs.
func (*Action) Fills() engine.Key { return steps.ContainerRootfs.Key() }

// Do prepares the snapshot and mounts it. The error is errdefs.ErrNotFound if the image has gone.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	ctr, err := steps.ContainerRequest.Need(r)
	if err != nil {
		return err
	}
	pod, err := steps.ContainerPod.Need(r)
	if err != nil {
		return err
	}
	path, err := ctrdir.Ensure(a.config, r.ID(), pod.Pod.Config.M, dirName)
	if err != nil {
		return err
	}
	snapshotter := a.snapshotter(pod.Pod.Handler)
	uids, gids := UserNamespace(pod.Pod.Config.M)
	mounts, err := a.store.PrepareRootfs(ctx, r.ID(), snapshot.RootfsOptions{
		Image: ctr.Image.ID, Snapshotter: snapshotter, UIDs: uids, GIDs: gids,
	})
	if err != nil {
		return fmt.Errorf("prepare the root file system: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := mount.All(mounts, path); err != nil {
		return fmt.Errorf("mount the root file system at %s: %w", path, err)
	}
	return steps.ContainerRootfs.Set(r, steps.Rootfs{Key: r.ID(), Snapshotter: snapshotter, Path: path})
}

func (a *Action) snapshotter(handler string) string {
	if rt, ok := a.config.RuntimeFor(handler); ok && rt.Snapshotter != "" {
		return rt.Snapshotter
	}
	return a.store.Snapshotter()
}

// Undo unmounts and removes the mount point, the snapshot and its lease.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.remove(ctx, r.ID()) }

func (a *Action) remove(ctx context.Context, id string) error {
	dir, err := ctrdir.Dir(a.config, id)
	if err != nil {
		return err
	}
	if err := ctrdir.RemoveMountpoint(filepath.Join(dir, dirName)); err != nil {
		return err // the snapshot is still in use
	}
	// Who comes first leaves last: a shim that ends may have run the OCI runtime once more.
	return errors.Join(a.store.RemoveRootfs(ctx, id), bundle.Clean(dir), ctrdir.Release(a.config, id))
}

// Sweep removes snapshots, leases, mounts and directories of containers without a record;
// the other actions have swept theirs before.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	leased, err := a.store.ListRootfs(ctx)
	if err != nil {
		return fmt.Errorf("list the snapshots of containers: %w", err)
	}
	mounted, err := ctrdir.List(a.config, "")
	if err != nil {
		return fmt.Errorf("list the directories of containers: %w", err)
	}
	seen := map[string]bool{}
	for _, id := range append(leased, mounted...) {
		// A sandbox container's rootfs is called as its pod.
		if seen[id] || s.Known(steps.Container, id) || s.Known(steps.Sandbox, id) {
			continue
		}
		seen[id] = true
		s.Remove("rootfs", id, func() error {
			if err := a.remove(ctx, id); err != nil {
				return err
			}
			return ctrdir.RemoveTree(a.config, id)
		})
	}
	return nil
}

// UserNamespace returns the mappings of the pod's own user namespace; nil if it uses the node's.
func UserNamespace(pod *runtime.PodSandboxConfig) (uids, gids []specs.LinuxIDMapping) {
	u := pod.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if u == nil || u.GetMode() != runtime.NamespaceMode_POD {
		return nil, nil
	}
	return mappings(u.GetUids()), mappings(u.GetGids())
}

func mappings(list []*runtime.IDMapping) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, 0, len(list))
	for _, m := range list {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}
