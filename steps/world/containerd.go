// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"strings"

	ctdleases "github.com/containerd/containerd/v2/core/leases"
	ctdsnapshots "github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/snapshot"
)

// leases are those of pods and containers, with the content that they hold.
func leases(ctx context.Context, l *look) error {
	if l.Client == nil {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, l.Namespace)
	service := l.Client.LeasesService()
	all, err := service.List(ctx)
	if err != nil {
		return fmt.Errorf("list containerd's leases: %w", err)
	}
	for _, lease := range all {
		// Of pulls there are others, and in a containerd that is shared other people's.
		ours := lease.Labels[snapshot.LabelInstance] == l.ContainerdRoot && idIn(lease.ID) != ""
		if !l.Node && !ours {
			continue
		}
		id := idIn(lease.ID)
		l.add(Leases, lease.ID, id)
		held, err := service.ListResources(ctx, ctdleases.Lease{ID: lease.ID})
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list what lease %s holds: %w", lease.ID, err)
		}
		for _, r := range held {
			if r.Type == "content" {
				l.add(LeasedContent, r.ID+" by "+lease.ID, id)
			}
		}
	}
	return nil
}

// snapshots are the active ones, and views: the others are images.
func snapshots(ctx context.Context, l *look) error {
	if l.Client == nil {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, l.Namespace)
	for _, name := range l.Snapshotters {
		err := l.Client.SnapshotService(name).Walk(ctx, func(_ context.Context, i ctdsnapshots.Info) error {
			if i.Kind != ctdsnapshots.KindActive && i.Kind != ctdsnapshots.KindView {
				return nil
			}
			id := idIn(i.Name)
			if strings.HasPrefix(i.Name, "extract-") {
				id = "" // of a pull, though it bears a digest
			}
			if l.Node || id != "" {
				l.add(Snapshots, i.Name, id)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list snapshots of %s: %w", name, err)
		}
	}
	return nil
}

// foreign is what handlers with other shims keep in containerd.
func foreign(ctx context.Context, l *look) error {
	if l.Client == nil {
		return nil
	}
	ctx = namespaces.WithNamespace(ctx, l.Namespace)
	containers, err := l.Client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("list containerd's containers: %w", err)
	}
	for _, c := range containers {
		if id := idIn(c.ID); l.Node || id != "" {
			l.add(ContainerdContainers, c.ID, id)
		}
	}
	sandboxes, err := l.Client.SandboxStore().List(ctx)
	if err != nil {
		return fmt.Errorf("list containerd's sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		if id := idIn(s.ID); l.Node || id != "" {
			l.add(ContainerdSandboxes, s.ID, id)
		}
	}
	return nil
}
