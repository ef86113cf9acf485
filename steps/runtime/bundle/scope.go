// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"context"
	"path/filepath"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
)

// scopeTimeout bounds what systemd may take to hear that a scope is to end.
const scopeTimeout = 5 * time.Second

// endScope has systemd forget the scope at a cgroup path. systemd does so by itself when the
// kernel tells it that the cgroup is empty; but on cgroup v1 nobody tells a systemd that runs
// in a container, and a process that died while systemd was about to move it is not missed
// either. So nothing depends on it: the processes are dead and the cgroup is gone.
func endScope(ctx context.Context, path string) {
	if filepath.Ext(path) != ".scope" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, scopeTimeout)
	defer cancel()
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return // systemd does not run here, or does not answer
	}
	defer conn.Close()
	_, _ = conn.StopUnitContext(ctx, filepath.Base(path), "replace", nil)
}
