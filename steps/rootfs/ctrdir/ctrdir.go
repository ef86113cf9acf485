// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ctrdir keeps the directory of a container, which the actions rootfs,
// volumes and spec share: whoever comes first makes it, whoever leaves last removes it.
package ctrdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

// Dir is the container's directory. An id that would lead out of it is refused
// (errdefs.ErrInvalidArgument): undoing removes what it finds there.
func Dir(c steps.Config, id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("container id %q is not a file name: %w", id, errdefs.ErrInvalidArgument)
	}
	return c.ContainerDir(id), nil
}

// Ensure makes the directory of a container of a pod, and directories below it.
func Ensure(c steps.Config, id string, cfg *runtime.PodSandboxConfig, below ...string) (string, error) {
	path, err := Dir(c, id)
	if err == nil {
		err = pod.MakeDir(filepath.Dir(path))
	}
	if err == nil {
		err = pod.MakePrivate(path, cfg)
	}
	for _, name := range below {
		if err == nil {
			path = filepath.Join(path, name)
			err = pod.MakeDir(path)
		}
	}
	if err != nil {
		return "", fmt.Errorf("make the container's directory: %w", err)
	}
	return path, nil
}

// Release removes the container's directory if nothing is left in it.
func Release(c steps.Config, id string) error {
	dir, err := Dir(c, id)
	if err != nil {
		return err
	}
	return RemoveEmpty(dir)
}

// RemoveTree removes the container's directory with all that is left in it, but never reaches
// through a mount.
func RemoveTree(c steps.Config, id string) error {
	dir, err := Dir(c, id)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list the mounts below %s: %w", dir, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: %s is still mounted", dir, mounts[0].Mountpoint)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the container's directory: %w", err)
	}
	return nil
}

// RemoveEmpty removes a directory unless something is in it. Nothing there is success.
func RemoveEmpty(dir string) error {
	err := unix.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return nil
	}
	return fmt.Errorf("remove directory %s: %w", dir, err)
}

// RemoveMountpoint detaches what is mounted at dir, with all below it, and removes the
// directory, which must then be empty. Nothing there is success.
func RemoveMountpoint(dir string) error {
	if err := pod.Unmount(dir); err != nil {
		return err
	}
	// Never with its contents: they would be the image's if the unmount had failed us.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", dir, err)
	}
	return nil
}

// List returns the IDs of containers that have a directory with an entry called name;
// "" is all that have a directory.
func List(c steps.Config, name string) ([]string, error) {
	dirs, err := filepath.Glob(c.ContainerDir("*"))
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(dirs))
	for _, d := range dirs {
		if _, err := os.Lstat(filepath.Join(d, name)); err == nil {
			ids = append(ids, filepath.Base(d))
		}
	}
	return ids, nil
}
