// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// Tasks is what a session needs of runtime.Tasks, which implements it.
type Tasks interface {
	// Exec runs a process to completion. All its output is delivered before
	// Exec returns its exit code. It does not wait for Stdin to end. If ctx
	// ends, the process and everything it started are killed.
	Exec(ctx context.Context, r runtime.ExecRequest) (code int, err error)
	// Attach joins the container's streams until the container ends (nil) or ctx does.
	Attach(ctx context.Context, id string, r runtime.AttachRequest) error
}

// Target is a running container as a session sees it.
type Target struct {
	// ID is the container's full ID.
	ID string
	// Tasks runs processes in the container.
	Tasks Tasks
	// Bundle is the directory of the container's OCI bundle.
	Bundle string
	// TTY and Stdin of the container's configuration.
	TTY, Stdin bool
}

// Resolver finds the objects that requests name. The CRI server implements it.
type Resolver interface {
	// ContainerTasks finds a running container. The error is errdefs.ErrNotFound
	// for an unknown one, errdefs.ErrFailedPrecondition for one that does not run.
	ContainerTasks(ctx context.Context, containerID string) (Target, error)
	// PodNetNS is the path of a ready pod's network namespace, or empty if it
	// is the node's own. Errors are as those of ContainerTasks.
	PodNetNS(ctx context.Context, podID string) (path string, err error)
}

// ProcessFunc makes the process of a command to run in the container of a
// bundle: its user, environment, capabilities and the like.
type ProcessFunc func(bundle string, cmd []string, tty bool) (*specs.Process, error)
