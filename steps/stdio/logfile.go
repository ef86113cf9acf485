// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	logMode    = 0o640
	logDirMode = 0o755
	// createTries is how often a log file may come and go while it is opened.
	createTries = 8
)

// openLogFile opens or makes the log file at path, and the directories above it. What
// lies below dir, or the file alone if dir is empty, may have been put there by who
// can write to the logs of the node: no link is followed there, and only a regular
// file is written to. Links on the way to dir are the node's own. The error is
// errdefs.ErrFailedPrecondition for something else in the place of file or directory.
func openLogFile(dir, path string) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("open container log %q: path is not absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	if dir == "" {
		dir = filepath.Dir(path)
	}
	below, err := filepath.Rel(dir, path)
	if err != nil || below == "." || !filepath.IsLocal(below) {
		return nil, fmt.Errorf("open container log %q: it is not below %q: %w", path, dir, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(dir, logDirMode); err != nil {
		return nil, fmt.Errorf("make directory of container log: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory of container log: %w", &os.PathError{Op: "open", Path: dir, Err: err})
	}
	defer func() { _ = unix.Close(fd) }()
	f, err := openBelow(fd, below, path)
	if err != nil {
		return nil, fmt.Errorf("open container log %s: %w", path, err)
	}
	return f, nil
}

// openBelow goes down from the directory at fd, which stays open, making what is missing.
func openBelow(fd int, below, path string) (*os.File, error) {
	first, rest, deeper := strings.Cut(below, "/")
	if !deeper {
		return openRegular(fd, first, path)
	}
	if err := unix.Mkdirat(fd, first, logDirMode); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make directory %s: %w", first, err)
	}
	next, err := unix.Openat(fd, first, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a link or no directory: %w", first, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", first, err)
	}
	defer func() { _ = unix.Close(next) }()
	return openBelow(next, rest, path)
}

// openRegular opens the file called name in the directory at fd for appending, or makes it.
func openRegular(fd int, name, path string) (*os.File, error) {
	for range createTries {
		made, err := unix.Openat(fd, name, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, logMode)
		if err == nil {
			return os.NewFile(uintptr(made), path), nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		found, err := openFound(fd, name, path)
		if !errors.Is(err, unix.ENOENT) { // else it was renamed meanwhile
			return found, err
		}
	}
	return nil, fmt.Errorf("it comes and goes: %w", errdefs.ErrUnavailable)
}

// openFound opens what is there, after a look at what it is: opening alone can hang (a
// FIFO) or do something (a device).
func openFound(fd int, name, path string) (*os.File, error) {
	handle, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(handle) }()
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return nil, err
	}
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG {
		return nil, fmt.Errorf("it is %s: %w", kindOf(kind), errdefs.ErrFailedPrecondition)
	}
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), path), nil
}

func kindOf(mode uint32) string {
	switch mode {
	case unix.S_IFLNK:
		return "a symbolic link, which is not followed"
	case unix.S_IFDIR:
		return "a directory"
	case unix.S_IFIFO:
		return "a FIFO"
	case unix.S_IFSOCK:
		return "a socket"
	}
	return "a device"
}
