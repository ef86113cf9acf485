// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inroot reads and makes files inside a container's root file system
// as the container would see them: links are followed, but never out of it.
package inroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// ErrTooLarge is returned for a file above the limit.
var ErrTooLarge = errors.New("file too large")

// Open opens the regular file path below root for reading. Anything else
// (a FIFO would block, a device could do anything) is refused before it is
// opened, as is a file of more than limit bytes (ErrTooLarge). A missing file is
// fs.ErrNotExist. The reader must bound its reading itself as well: a file can grow.
func Open(root, path string, limit int64) (*os.File, error) {
	handle, err := pathrs.OpenInRoot(root, path)
	if err != nil {
		return nil, fmt.Errorf("open %s in the image: %w", path, err)
	}
	defer func() { _ = handle.Close() }()
	info, err := handle.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at %s in the image: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("open %s in the image: it is not a regular file but %s", path, info.Mode().Type())
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("open %s in the image: %d bytes are above the limit of %d: %w", path, info.Size(), limit, ErrTooLarge)
	}
	f, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open %s in the image: %w", path, err)
	}
	return f, nil
}

// MkdirAll makes the directory path below root, and its parents, with mode,
// unless it is there. Something else in its place is an error.
func MkdirAll(root, path string, mode fs.FileMode) error {
	if handle, err := pathrs.OpenInRoot(root, path); err == nil {
		defer func() { _ = handle.Close() }()
		info, err := handle.Stat()
		if err != nil {
			return fmt.Errorf("look at %s in the image: %w", path, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("make directory %s in the image: %w", path, unix.ENOTDIR)
		}
		return nil
	}
	if err := pathrs.MkdirAll(root, path, mode); err != nil {
		return fmt.Errorf("make directory %s in the image: %w", path, err)
	}
	return nil
}
