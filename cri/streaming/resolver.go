// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"

	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// Resolver finds the objects that requests name. The CRI server implements it.
type Resolver interface {
	// ContainerTasks finds a running container. The error is errdefs.ErrNotFound
	// for an unknown container, errdefs.ErrFailedPrecondition for one that does not run.
	ContainerTasks(ctx context.Context, containerID string) (Target, error)
	// PodNetNS is the path of a ready pod's network namespace, or empty if it
	// is the node's own. Errors are as those of ContainerTasks.
	PodNetNS(ctx context.Context, podID string) (path string, err error)
}

// Target is a running container as a session sees it.
type Target struct {
	// ID is the container's whole ID, also where the request had only a prefix.
	ID string
	// Tasks runs processes in the container.
	Tasks runtime.Tasks
	// Bundle is the directory of its OCI bundle.
	Bundle string
	// TTY and Stdin as in the container's configuration.
	TTY, Stdin bool
}
