// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
)

// takeRootfs writes what a root file system has more than its image, and lists what it
// has not any more. Device nodes are left out: which of them a container may have is not
// for its files to say.
func takeRootfs(ctx context.Context, base, rootfs, dir string) error {
	deleted := []string{}
	err := write(filepath.Join(dir, metadata.RootFsDiffTar), func(w io.Writer) error {
		changes := archive.NewChangeWriter(w, rootfs)
		err := fs.Changes(ctx, base, rootfs, func(k fs.ChangeKind, path string, info os.FileInfo, err error) error {
			switch {
			case err != nil:
				return err
			case k == fs.ChangeKindDelete:
				deleted = append(deleted, path)
				return nil
			case k == fs.ChangeKindUnmodified, info.Mode()&os.ModeDevice != 0:
				return nil
			}
			return changes.HandleChange(k, path, info, nil)
		})
		return errors.Join(err, changes.Close())
	})
	if err != nil {
		return err
	}
	_, err = metadata.WriteJSONFile(deleted, dir, metadata.DeletedFilesFile)
	return err
}

// apply unpacks a tar file onto a directory. It stays in the directory whatever links
// there are, and refuses device nodes.
func apply(ctx context.Context, root string, r io.Reader) error {
	_, err := archive.Apply(ctx, root, r, archive.WithFilter(func(h *tar.Header) (bool, error) {
		switch h.Typeflag {
		case tar.TypeChar, tar.TypeBlock:
			return false, fmt.Errorf("%s is a device: %w", h.Name, errdefs.ErrInvalidArgument)
		}
		return true, nil
	}))
	return err
}

// remove removes a path of a root file system; links on the way to it stay in there.
func remove(root, path string) error {
	path = filepath.Join("/", path)
	if path == "/" {
		return fmt.Errorf("the root itself: %w", errdefs.ErrInvalidArgument)
	}
	parent, err := fs.RootPath(root, filepath.Dir(path))
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(parent, filepath.Base(path)))
}
