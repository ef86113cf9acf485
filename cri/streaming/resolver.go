// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"io"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Target is a running container as the streaming server sees it.
type Target struct {
	// ID is the container's full ID.
	ID string
	// Tasks runs processes in the container.
	Tasks Tasks
	// Bundle is the container's OCI bundle.
	Bundle string
	// TTY and Stdin of the container's configuration.
	TTY, Stdin bool
}

// Resolver finds the objects that requests name. It is implemented by the CRI server.
type Resolver interface {
	// ContainerTasks finds a running container. The error is errdefs.ErrNotFound
	// for an unknown one, errdefs.ErrFailedPrecondition for one that does not run.
	ContainerTasks(ctx context.Context, containerID string) (Target, error)
	// PodNetNS is the path of a ready pod's network namespace, empty for the
	// node's own. Errors are as those of ContainerTasks.
	PodNetNS(ctx context.Context, podID string) (path string, err error)
}
