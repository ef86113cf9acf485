// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// FileSystem is one on this node. Sizes are in bytes.
type FileSystem struct {
	Device             string // as mounted: /dev/sda1
	Size               uint64
	Inodes, InodesFree uint64
}

// FileSystemOf tells of the file system that path is on.
func FileSystemOf(path string) (FileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return FileSystem{}, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return FileSystem{}, fmt.Errorf("find the mount of %s: %w", path, err)
	}
	fs := FileSystem{Size: st.Blocks * uint64(st.Bsize), Inodes: st.Files, InodesFree: st.Ffree} //nolint:gosec // a block size is not negative
	longest := -1
	for _, m := range mounts { // of two at one place the later covers the earlier
		if len(m.Mountpoint) >= longest {
			longest, fs.Device = len(m.Mountpoint), m.Source
		}
	}
	return fs, nil
}

// DeviceName is the path of a block device, or its numbers if the node has no name for it.
func DeviceName(major, minor uint64) string {
	number := strconv.FormatUint(major, 10) + ":" + strconv.FormatUint(minor, 10)
	target, err := filepath.EvalSymlinks(filepath.Join("/sys/dev/block", number))
	if err != nil {
		return number
	}
	return "/dev/" + filepath.Base(target)
}
