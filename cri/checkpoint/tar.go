// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Pack writes the files of a directory into a tar file, which must not be there yet.
func Pack(ctx context.Context, dir, path string) error {
	err := write(path, func(w io.Writer) error {
		t := tar.NewWriter(w)
		err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return pack(ctx, t, dir, file, d)
		})
		return errors.Join(err, t.Close())
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// pack adds one file. Of what CRIU leaves besides files there is no need.
func pack(ctx context.Context, t *tar.Writer, dir, file string, d fs.DirEntry) error {
	name, err := filepath.Rel(dir, file)
	if err != nil || name == "." {
		return err
	}
	if !d.IsDir() && !d.Type().IsRegular() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name = name
	if d.IsDir() {
		header.Name += "/"
	}
	if err := t.WriteHeader(header); err != nil || d.IsDir() {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	_, err = io.Copy(t, reader{ctx, f})
	return err
}

// reader ends with its context.
type reader struct {
	ctx context.Context //nolint:containedctx // of the one call that reads
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
