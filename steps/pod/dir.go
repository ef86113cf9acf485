// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

const (
	// dirMode lets the root of a user namespace go through a directory to its own pod, and
	// nobody list the pods.
	dirMode = 0o711
	// ownMode is that of the directory of one pod or container, and sharedMode if the pod
	// has a user namespace, whose root has to pass. Others must not: there are programs
	// with the setuid bit below, and the pod's shared memory, and the IDs are no secret.
	// What is mounted into a container is reached there, not through here.
	ownMode    = 0o700
	sharedMode = 0o710
	// maxStacked bounds how many mounts may lie on top of each other at one place.
	maxStacked = 64
)

// Ensure makes the pod's directory and returns it. Actions that run side by
// side may all call it.
func Ensure(c steps.Config, id string, cfg *runtime.PodSandboxConfig) (string, error) {
	dir, err := Dir(c, id)
	if err != nil {
		return "", err
	}
	if err := MakeDir(filepath.Dir(dir)); err != nil {
		return "", err
	}
	return dir, MakePrivate(dir, cfg)
}

// MakePrivate makes a directory that only root can enter, and the root of the pod's user
// namespace if it has one.
func MakePrivate(dir string, cfg *runtime.PodSandboxConfig) error {
	if err := os.Mkdir(dir, ownMode); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	u, ok := UserNamespace(cfg)
	if !ok {
		return os.Chmod(dir, ownMode)
	}
	_, gid := u.Root()
	return errors.Join(os.Lchown(dir, 0, gid), os.Chmod(dir, sharedMode))
}

// MakeDir makes a directory of mode 0711, whatever the umask.
func MakeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return err
	}
	return os.Chmod(dir, dirMode)
}

// Dir is the pod's directory. An id that would lead out of it is refused:
// undoing removes what it finds there.
func Dir(c steps.Config, id string) (string, error) {
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("pod id %q is not a file name", id)
	}
	return c.PodDir(id), nil
}

// Release removes the pod's directory if nothing is left in it. Each action
// calls it after undoing its part; the last one succeeds in removing.
func Release(c steps.Config, id string) error {
	dir, err := Dir(c, id)
	if err != nil {
		return err
	}
	err = unix.Rmdir(dir)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return nil
	}
	return fmt.Errorf("remove the pod's directory %s: %w", dir, err)
}

// Unmount detaches every mount that lies at path. Nothing there is success.
func Unmount(path string) error {
	for range maxStacked {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // not a mount point
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return fmt.Errorf("unmount %s: more than %d mounts lie there", path, maxStacked)
}
