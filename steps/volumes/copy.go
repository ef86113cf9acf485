// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	confs "github.com/containerd/continuity/fs"
	"golang.org/x/sys/unix"
)

// copyTree makes dst a copy of the directory that src is open at: owners, modes,
// times, links and extended attributes as they are there.
func copyTree(dst string, src *os.File) error {
	from := fmt.Sprintf("/proc/self/fd/%d", src.Fd())
	unsupported := func(_, _, _ string, err error) error {
		if errors.Is(err, unix.ENOTSUP) {
			return nil // the volume's file system has none of the kind
		}
		return err
	}
	if err := confs.CopyDir(dst, from, confs.WithXAttrErrorHandler(unsupported)); err != nil {
		return err
	}
	return copyDirTimes(dst, from)
}

// copyDirTimes sets the times of directories, which filling them has changed.
func copyDirTimes(dst, src string) error {
	var dirs []string
	err := filepath.WalkDir(dst, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) {
		below, err := filepath.Rel(dst, dir)
		if err != nil {
			return err
		}
		st, err := os.Stat(filepath.Join(src, below))
		if err != nil {
			return err
		}
		if err := os.Chtimes(dir, time.Time{}, st.ModTime()); err != nil {
			return err
		}
	}
	return nil
}

// openInRoot opens a path of the image as a process whose root is there would find
// it: links, also absolute ones and those with "..", never lead out.
func openInRoot(root, path string) (*os.File, error) {
	return openat2(root, path, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

// openBeneath opens a path below root and refuses links that lead out.
func openBeneath(root, path string) (*os.File, error) {
	return openat2(root, path, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_XDEV)
}

func openat2(root, path string, resolve uint64) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	defer func() { _ = unix.Close(dir) }()
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, path, how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // something was renamed meanwhile, somewhere
		}
		if err != nil {
			return nil, fmt.Errorf("open %s in the image: %w", path, err)
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}
