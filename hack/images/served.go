// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// registryFiles are the files, below /var/registry, from which agnhost's fake-registry-server
// serves an image.
func registryFiles(name, tag string, img v1.Image) ([]file, error) {
	dir := "var/registry/" + name
	blob := func(kind string, digest v1.Hash, raw []byte) file {
		path := dir + "/" + kind + "/" + digest.Algorithm + "/" + digest.Hex[:2] + "/" + digest.Hex + "/data"
		return file{path: path, text: string(raw), mode: 0o644}
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	files := []file{
		{path: dir + "/manifests/" + tag, text: digest.String(), mode: 0o644},
		blob("manifests", digest, manifest), blob("blobs", config, raw),
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		raw, err := compressed(l)
		if err != nil {
			return nil, err
		}
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		files = append(files, blob("blobs", digest, raw))
	}
	return files, nil
}

// compressed is a layer as it is sent.
func compressed(l v1.Layer) (raw []byte, err error) {
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	raw, err = io.ReadAll(r)
	if closed := r.Close(); err == nil {
		err = closed
	}
	return raw, err
}
