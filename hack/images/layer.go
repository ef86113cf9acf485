// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"sort"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// file is one entry of a layer. Exactly one of from, text, link and hard says what it is;
// none of them makes an empty file, and a mode with os.ModeDir a directory.
type file struct {
	path string
	from string // a file to copy
	text string
	link string // target of a symbolic link
	hard string // an earlier path of the same layer
	mode os.FileMode
	uid  int
	gid  int
}

// epoch is the time stamp of everything, so that the same input makes the same digest.
var epoch = time.Unix(0, 0).UTC()

// layer makes a gzipped layer of files; parent directories are added.
func layer(files []file, more ...tarball.LayerOption) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{".": true}
	for _, f := range files {
		if f.mode.IsDir() {
			made[f.path] = true
		}
		if err := parents(w, made, path.Dir(f.path)); err != nil {
			return nil, err
		}
		if err := add(w, f); err != nil {
			return nil, fmt.Errorf("could not add %s to a layer: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	raw := buf.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(raw)), nil
	}, append(more, tarball.WithMediaType(types.OCILayer))...)
}

func parents(w *tar.Writer, made map[string]bool, dir string) error {
	if made[dir] {
		return nil
	}
	if err := parents(w, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: epoch})
}

func add(w *tar.Writer, f file) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: unixMode(f.mode), Uid: f.uid, Gid: f.gid, ModTime: epoch}
	body := []byte(f.text)
	switch {
	case f.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, f.path+"/"
	case f.link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
	case f.hard != "":
		h.Typeflag, h.Linkname = tar.TypeLink, f.hard
	case f.from != "":
		raw, err := os.ReadFile(f.from)
		if err != nil {
			return err
		}
		body = raw
	}
	h.Size = int64(len(body))
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(body)
	return err
}

func unixMode(m os.FileMode) int64 {
	mode := int64(m.Perm())
	if m&os.ModeSetuid != 0 {
		mode |= 0o4000
	}
	if m&os.ModeSticky != 0 {
		mode |= 0o1000
	}
	return mode
}

// image puts layers and a configuration together, as an OCI image for this machine's platform.
func image(cfg v1.Config, layers ...v1.Layer) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Created = v1.Time{Time: epoch}
	file.Config = cfg
	sort.Strings(file.Config.Env)
	return mutate.ConfigFile(img, file)
}
