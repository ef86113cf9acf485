// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// containerd counts what is in its metadata; images and content are the user's, not a pod's.
func containerd(ctx context.Context, w Where, out World) (err error) {
	if w.Containerd == "" {
		return nil
	}
	c, err := client.New(w.Containerd, client.WithTimeout(10*time.Second))
	if err != nil {
		return fmt.Errorf("could not reach containerd at %s: %w", w.Containerd, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	out["snapshots"], out["containerd leases"], out["containerd containers"], out["containerd sandboxes"] = nil, nil, nil, nil
	err = c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind == snapshots.KindActive || i.Kind == snapshots.KindView {
			out["snapshots"] = append(out["snapshots"], i.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	leases, err := c.LeasesService().List(ctx)
	if err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	for _, l := range leases {
		out["containerd leases"] = append(out["containerd leases"], l.ID)
	}
	containers, err := c.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	for _, k := range containers {
		out["containerd containers"] = append(out["containerd containers"], k.ID)
	}
	sandboxes, err := c.SandboxStore().List(ctx)
	if err != nil {
		return fmt.Errorf("sandboxes: %w", err)
	}
	for _, s := range sandboxes {
		out["containerd sandboxes"] = append(out["containerd sandboxes"], s.ID)
	}
	return nil
}
