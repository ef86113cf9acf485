// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// The files cases_*_test.go show, with the whole daemon, what docs/cases.md promises. The
// number of a case is in the name of its test.

// file is an entry of a layer.
type file = snapshottest.File

// base is the image that others are made from: a small system.
func (n *node) base() v1.Image {
	n.t.Helper()
	_, repo, _ := strings.Cut(images.Busybox, "/")
	ref, err := name.ParseReference(n.registry.Addr+"/"+repo, name.Insecure)
	must(n.t, err)
	img, err := remote.Image(ref)
	must(n.t, err)
	return img
}

// layer makes a compressed layer.
func layer(t *testing.T, files ...file) v1.Layer {
	t.Helper()
	return compressed(t, bytes.NewReader(snapshottest.Tar(t, files...)))
}

func compressed(t *testing.T, tar io.Reader) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	must(t, err)
	_, err = io.Copy(w, tar)
	must(t, err)
	must(t, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	must(t, err)
	return l
}

// image pushes the base with one more layer and a changed configuration, and pulls it. It
// gives the reference.
func (n *node) image(repo string, change func(*v1.Config), layers ...v1.Layer) string {
	n.t.Helper()
	img, err := mutate.AppendLayers(n.base(), layers...)
	must(n.t, err)
	f, err := img.ConfigFile()
	must(n.t, err)
	f = f.DeepCopy()
	if change != nil {
		change(&f.Config)
	}
	img, err = mutate.ConfigFile(img, f)
	must(n.t, err)
	n.push(repo, img)
	n.pull("cases.example/" + repo)
	return "cases.example/" + repo
}

func (n *node) push(repo string, img v1.Image) {
	n.t.Helper()
	ref, err := name.ParseReference(n.registry.Addr+"/"+repo, name.Insecure)
	must(n.t, err)
	must(n.t, remote.Write(ref, img))
}

// ctrOf makes a container's configuration with an image of its own.
func (n *node) ctrOf(image, name string, command ...string) *cri.ContainerConfig {
	c := n.ctr(name, command...)
	c.Image = &cri.ImageSpec{Image: image, UserSpecifiedImage: image}
	return c
}

// privileged makes pods and containers that may all.
func privileged(cfg *cri.PodSandboxConfig) *cri.PodSandboxConfig {
	cfg.Linux.SecurityContext.Privileged = true
	return cfg
}

// hostNetwork makes pods that use the node's network.
func hostNetwork(cfg *cri.PodSandboxConfig) *cri.PodSandboxConfig {
	cfg.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	cfg.Hostname = ""
	return cfg
}

// output runs a container to its end and gives what it printed.
func (n *node) output(pod string, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) string {
	n.t.Helper()
	id := n.started(pod, cfg, c)
	s := n.exited(id)
	records := n.log(cfg, c.GetMetadata().GetName())
	out := rebuild(records, "stdout")
	if s.GetExitCode() != 0 {
		n.t.Errorf("container %s: exit code %d (%s): %s%s", c.GetMetadata().GetName(), s.GetExitCode(), s.GetMessage(), out, rebuild(records, "stderr"))
	}
	n.removeContainer(id)
	must(n.t, os.Remove(filepath.Join(cfg.GetLogDirectory(), c.GetLogPath())))
	return out
}

// notCreated checks that a container is refused at create, with a word of why.
func (n *node) notCreated(pod string, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig, words string) {
	n.t.Helper()
	id, err := n.tryCreate(n.t.Context(), pod, cfg, c)
	if err == nil {
		n.removeContainer(id)
	}
	refused(n.t, err, words)
}

// has checks that some text has a line or word, and misses the opposite.
func has(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: no %q in\n%s", what, w, text)
		}
	}
}

func misses(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if strings.Contains(text, w) {
			t.Errorf("%s: %q is in\n%s", what, w, text)
		}
	}
}

func (n *node) podStatus(pod string) *cri.PodSandboxStatus {
	n.t.Helper()
	r, err := n.client.PodSandboxStatus(n.t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	must(n.t, err)
	return r.GetStatus()
}

func (n *node) imageStatus(image string) *cri.Image {
	n.t.Helper()
	r, err := n.client.ImageStatus(n.t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
	must(n.t, err)
	return r.GetImage()
}

func (n *node) listImages() []*cri.Image {
	n.t.Helper()
	r, err := n.client.ListImages(n.t.Context(), &cri.ListImagesRequest{})
	must(n.t, err)
	return r.GetImages()
}

func (n *node) tryPull(ctx context.Context, image string) error {
	_, err := n.client.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	return err
}

// read is the text of a file, without spaces around it.
func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	return strings.TrimSpace(string(raw))
}
