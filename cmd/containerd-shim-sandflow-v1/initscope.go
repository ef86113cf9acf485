// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// scopeTimeout bounds what systemd may take to make a scope.
const scopeTimeout = 30 * time.Second

// isScope tells whether a cgroup path is of systemd's form "slice:prefix:name".
func isScope(path string) bool { return strings.Count(path, ":") == 2 }

// joinScope has systemd move a process into a transient scope of its own, in the
// slice of a path "slice:prefix:name". systemd removes the scope when it is empty.
func joinScope(ctx context.Context, path string, pid int) error {
	parts := strings.SplitN(path, ":", 3)
	slice, unit := parts[0], parts[1]+"-"+parts[2]+".scope"
	ctx, cancel := context.WithTimeout(ctx, scopeTimeout)
	defer cancel()
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer conn.Close()
	properties := []systemd.Property{
		systemd.PropDescription("init of a pod"),
		systemd.PropSlice(slice),
		systemd.PropPids(uint32(pid)), //nolint:gosec // a PID
		{Name: "DefaultDependencies", Value: dbus.MakeVariant(false)},
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")}, // leave no failed unit either
	}
	result := make(chan string, 1)
	if _, err := conn.StartTransientUnitContext(ctx, unit, "replace", properties, result); err != nil {
		return fmt.Errorf("start scope %s in %s: %w", unit, slice, err)
	}
	select {
	case got := <-result:
		if got != "done" {
			return fmt.Errorf("start scope %s in %s: systemd says %q: %w", unit, slice, got, errdefs.ErrUnavailable)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start scope %s in %s: %w", unit, slice, ctx.Err())
	}
}
