// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/snapshot"
)

// toCRI is an image as the CRI describes it.
func toCRI(img snapshot.Image) *cri.Image {
	uid, name := user(img.Spec.Config.User)
	return &cri.Image{
		Id:          img.ID,
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        unsigned(img.Size),
		Uid:         uid,
		Username:    name,
		Spec:        &cri.ImageSpec{Image: img.ID, Annotations: img.Target.Annotations},
		Pinned:      img.Pinned,
	}
}

// user splits the USER of an image, which is a user and perhaps a group, each
// by name or number. An image without one gives neither.
func user(s string) (uid *cri.Int64Value, name string) {
	name, _, _ = strings.Cut(s, ":")
	if n, err := strconv.ParseInt(name, 10, 64); err == nil && n >= 0 {
		return &cri.Int64Value{Value: n}, ""
	}
	return nil, name
}

// info is the verbose part of an ImageStatusResponse.
func info(img snapshot.Image) (map[string]string, error) {
	text, err := json.Marshal(struct {
		ChainID   string             `json:"chainID"`
		Names     []string           `json:"names"`
		Target    ocispec.Descriptor `json:"target"`
		ImageSpec ocispec.Image      `json:"imageSpec"`
	}{img.ChainID, img.Names, img.Target, img.Spec})
	if err != nil {
		return nil, fmt.Errorf("encode the verbose info: %w", err)
	}
	return map[string]string{"info": string(text)}, nil
}
