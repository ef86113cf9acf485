// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"path/filepath"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	taskservice "github.com/containerd/containerd/api/services/tasks/v1"
	runcopts "github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
)

func (t *podTasks) Pause(ctx context.Context, id string) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	_, err = c.tasks.Pause(ctx, &taskapi.PauseRequest{ID: id})
	return native(err)
}

func (t *podTasks) Resume(ctx context.Context, id string) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	_, err = c.tasks.Resume(ctx, &taskapi.ResumeRequest{ID: id})
	return native(err)
}

func (t *podTasks) Checkpoint(ctx context.Context, r CheckpointRequest) error {
	c, err := t.conn(ctx)
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAnyToProto(checkpointOptions(r))
	if err != nil {
		return err
	}
	_, err = c.tasks.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: r.ID, Path: r.Images, Options: options})
	if err != nil && ctx.Err() != nil {
		return ctx.Err() // the shim, which has the same deadline, may have been faster to tell
	}
	return native(err)
}

// checkpointOptions let a dump have what pods commonly hold: connections, locks,
// sockets of the node (a logger's). Whether these can be had again is for the
// restoration to see; a dump is also made to be looked at.
func checkpointOptions(r CheckpointRequest) *runcopts.CheckpointOptions {
	return &runcopts.CheckpointOptions{
		OpenTcp: true, ExternalUnixSockets: true, FileLocks: true, Terminal: r.Terminal,
		WorkPath: r.Work, ImagePath: r.Images,
	}
}

func (t *foreignTasks) Pause(ctx context.Context, id string) error {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return err
	}
	if s, err := task.Status(ctx); err == nil && s.Status == containerd.Paused {
		return nil
	}
	return task.Pause(ctx)
}

func (t *foreignTasks) Resume(ctx context.Context, id string) error {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return err
	}
	s, err := task.Status(ctx)
	if err != nil {
		return err
	}
	if s.Status != containerd.Paused && s.Status != containerd.Pausing {
		return nil
	}
	return task.Resume(ctx)
}

func (t *foreignTasks) Checkpoint(ctx context.Context, r CheckpointRequest) error {
	client, ctx, err := t.foreign.client(ctx)
	if err != nil {
		return err
	}
	options, err := typeurl.MarshalAnyToProto(checkpointOptions(r))
	if err != nil {
		return err
	}
	_, err = client.TaskService().Checkpoint(ctx, &taskservice.CheckpointTaskRequest{ContainerID: r.ID, Options: options})
	return errgrpc.ToNative(err)
}

// restoreOptions tell containerd where the dump is; only shims with runc's options know.
func restoreOptions(r CreateRequest) []containerd.NewTaskOpts {
	if r.Checkpoint == "" {
		return nil
	}
	return []containerd.NewTaskOpts{
		containerd.WithRestoreImagePath(r.Checkpoint), containerd.WithRestoreWorkPath(filepath.Dir(r.Checkpoint)),
	}
}
