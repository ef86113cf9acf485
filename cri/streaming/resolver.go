// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"

	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// Resolver finds the objects that requests name. The CRI server implements it.
type Resolver interface {
	// ContainerTasks finds a running container: what runs processes in it, its
	// OCI bundle, and tty and stdin of its configuration. The error is
	// errdefs.ErrNotFound for an unknown container, errdefs.ErrFailedPrecondition
	// for one that does not run.
	ContainerTasks(ctx context.Context, containerID string) (tasks runtime.Tasks, bundle string, tty, stdin bool, err error)
	// PodNetNS is the path of a ready pod's network namespace, or empty if it
	// is the node's own. Errors are as those of ContainerTasks.
	PodNetNS(ctx context.Context, podID string) (path string, err error)
}

// target is a running container as a session sees it.
type target struct {
	id, bundle string
	tasks      runtime.Tasks
	tty, stdin bool
}
