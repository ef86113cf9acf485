// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"

	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// Modes of what a checkpoint is made of: it holds the memory of processes.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// specFile is the bundle's OCI spec.
const specFile = "config.json"

// Dumper dumps the processes of a container.
type Dumper interface {
	Checkpoint(ctx context.Context, r runtime.CheckpointRequest) error
}

// Container is a container that a checkpoint is taken of.
type Container struct {
	ID       string
	Tasks    Dumper
	Terminal bool
	// Bundle has its OCI spec; Rootfs is where its root file system is mounted, Base where
	// its image is, for comparison.
	Bundle, Rootfs, Base string
	// Volumes are the directories of the image's volumes, Shm that of /dev/shm, if it is
	// the pod's.
	Volumes []string
	Shm     string
	// Config and Status say what it is.
	Config metadata.ContainerConfig
	Status metadata.ContainerdStatus
}

// Describe writes into dir what is known before the container is frozen. It makes dir.
func (c *Container) Describe(dir string) error {
	if err := os.Mkdir(dir, dirMode); err != nil {
		return fmt.Errorf("make the checkpoint of container %s: %w", c.ID, err)
	}
	err := os.Mkdir(filepath.Join(dir, metadata.CheckpointDirectory), dirMode)
	if err == nil {
		err = copyFile(filepath.Join(dir, metadata.SpecDumpFile), filepath.Join(c.Bundle, specFile))
	}
	if err == nil {
		_, err = metadata.WriteJSONFile(c.Config, dir, metadata.ConfigDumpFile)
	}
	if err == nil {
		_, err = metadata.WriteJSONFile(c.Status, dir, metadata.StatusFile)
	}
	if err != nil {
		return fmt.Errorf("describe container %s: %w", c.ID, err)
	}
	return nil
}

// Take dumps the frozen container into dir, and all that it had written.
func (c *Container) Take(ctx context.Context, dir string) error {
	err := c.Tasks.Checkpoint(ctx, runtime.CheckpointRequest{
		ID: c.ID, Images: filepath.Join(dir, metadata.CheckpointDirectory), Work: dir, Terminal: c.Terminal,
	})
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("dump container %s: %w", c.ID, ctx.Err())
		}
		return fmt.Errorf("dump container %s: %w%s", c.ID, err, told(dir))
	}
	if err := takeRootfs(ctx, c.Base, c.Rootfs, dir); err != nil {
		return fmt.Errorf("take the root file system of container %s: %w", c.ID, err)
	}
	for _, v := range c.Volumes {
		if err := takeTree(ctx, v, dir, filepath.Join(metadata.CheckpointVolumesDirectory, filepath.Base(v)+".tar")); err != nil {
			return fmt.Errorf("take the volumes of container %s: %w", c.ID, err)
		}
	}
	if c.Shm == "" {
		return nil
	}
	if err := takeTree(ctx, c.Shm, dir, metadata.DevShmCheckpointTar); err != nil {
		return fmt.Errorf("take /dev/shm of container %s: %w", c.ID, err)
	}
	return nil
}

// told is what CRIU's log in dir says of a failure.
func told(dir string) string {
	raw, err := os.ReadFile(filepath.Join(dir, metadata.DumpLogFile))
	if err != nil || len(raw) == 0 {
		return ""
	}
	return " (criu: " + lastError(raw) + ")"
}

// takeTree writes all of a directory into a tar file.
func takeTree(ctx context.Context, tree, dir, name string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return write(path, func(w io.Writer) error { return archive.WriteDiff(ctx, w, "", tree) })
}

// write makes a file; half of one is left for the owner of the directory to remove.
func write(path string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	err = fill(f)
	return errors.Join(err, f.Close())
}

func copyFile(dst, src string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return write(dst, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	})
}
