// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes is the action that gives a container what its image declares as
// VOLUME, as copies of the image's content, and the images it mounts as volumes.
package volumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	podcheck "github.com/sandflow-cri/sandflow/steps/pod"
	"github.com/sandflow-cri/sandflow/steps/rootfs"
	"github.com/sandflow-cri/sandflow/steps/rootfs/ctrdir"
)

func init() {
	steps.Register("volumes", func(s *steps.Services) engine.Action { return New(s.Config, s.Store) })
}

// Action is the action "volumes". Copies are <VolumeDir>/<hash of the path>, image
// mounts <ContainerDir>/images/<n>; the views' lease is <id>-images.
type Action struct {
	config steps.Config
	store  *snapshot.Store
}

// New makes the action.
func New(c steps.Config, s *snapshot.Store) *Action { return &Action{config: c, store: s} }

// Needs of Do.
func (*Action) Needs() []engine.Key {
	return []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key(), steps.ContainerRootfs.Key()}
}

// Fills the container's volumes.
func (*Action) Fills() engine.Key { return steps.ContainerVolumes.Key() }

// work is what one Do has to go by.
type work struct {
	id         string
	pod        *runtime.PodSandboxConfig
	ctr        steps.Ctr
	rootfs     steps.Rootfs
	uids, gids []specs.LinuxIDMapping
}

// Do copies the image's volumes, unless the request mounts something at their paths,
// and mounts the images that the request names.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	w := work{id: r.ID()}
	var err error
	if w.ctr, err = steps.ContainerRequest.Need(r); err != nil {
		return err
	}
	if w.rootfs, err = steps.ContainerRootfs.Need(r); err != nil {
		return err
	}
	pod, err := steps.ContainerPod.Need(r)
	if err != nil {
		return err
	}
	w.pod = pod.Pod.Config.M
	w.uids, w.gids = rootfs.UserNamespace(w.pod)
	copies, err := a.copies(ctx, w)
	if err != nil {
		return err
	}
	images, err := a.images(ctx, w)
	if err != nil {
		return err
	}
	return steps.ContainerVolumes.Set(r, steps.Volumes{Mounts: append(copies, images...)})
}

// copies makes the copies of the image's volumes.
func (a *Action) copies(ctx context.Context, w work) ([]steps.Volume, error) {
	var made []steps.Volume
	for _, target := range declared(w.ctr) {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		dst, err := a.volumeDir(w, target)
		if err == nil {
			err = fill(dst, target, w)
		}
		if err != nil {
			return nil, fmt.Errorf("volume %s of the image: %w", target, err)
		}
		made = append(made, steps.Volume{Source: dst, Target: target})
	}
	return made, nil
}

// declared lists the image's volumes that the request mounts nothing over, parents first.
func declared(c steps.Ctr) []string {
	taken := map[string]bool{"/": true}
	for _, m := range c.Config.M.GetMounts() {
		taken[filepath.Join("/", m.GetContainerPath())] = true
	}
	var paths []string
	for p := range c.Image.Config.Volumes {
		if p = filepath.Join("/", p); !taken[p] {
			taken[p] = true
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	return paths
}

// volumeDir makes the directory that holds the container's copies and names the one of target.
func (a *Action) volumeDir(w work, target string) (string, error) {
	if _, err := ctrdir.Dir(a.config, w.id); err != nil {
		return "", err
	}
	dir := a.config.VolumeDir(w.id)
	if err := podcheck.MakeDir(filepath.Dir(dir)); err != nil {
		return "", err
	}
	if err := podcheck.MakePrivate(dir, w.pod); err != nil { // the copies have the image's modes
		return "", err
	}
	sum := sha256.Sum256([]byte(target))
	return filepath.Join(dir, hex.EncodeToString(sum[:8])), nil
}

// fill copies target from the container's rootfs; where the image has nothing there,
// the volume is an empty directory of the container's root.
func fill(dst, target string, w work) error {
	src, err := openInRoot(w.rootfs.Path, target)
	if errors.Is(err, fs.ErrNotExist) {
		const mode = 0o755
		if err := os.Mkdir(dst, mode); err != nil {
			return err
		}
		return errors.Join(os.Chmod(dst, mode), os.Chown(dst, hostRoot(w.uids), hostRoot(w.gids)))
	}
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("the image has no directory there but %s: %w", st.Mode().Type(), errdefs.ErrInvalidArgument)
	}
	return copyTree(dst, src)
}

// hostRoot is who root of the user namespace is outside of it.
func hostRoot(maps []specs.LinuxIDMapping) int {
	for _, m := range maps {
		if m.ContainerID == 0 {
			return int(m.HostID)
		}
	}
	return 0
}

const (
	imagesDir = "images"
	// kindImages is the kind of the leases that own the views of mounted images.
	kindImages = "images"
	leaseTail  = "-images"
)

// images mounts the images that the request names, read-only.
func (a *Action) images(ctx context.Context, w work) ([]steps.Volume, error) {
	var made []steps.Volume
	for n, m := range w.ctr.Config.M.GetMounts() {
		ref := m.GetImage().GetImage()
		if ref == "" {
			continue
		}
		img, err := a.store.Image(ctx, ref)
		if err != nil {
			return nil, fmt.Errorf("image mount %s: %w", m.GetContainerPath(), err)
		}
		source, err := a.mountImage(ctx, w, n, img)
		if err == nil {
			source, err = subPath(source, m.GetImageSubPath())
		}
		if err != nil {
			return nil, fmt.Errorf("image mount %s: %w", m.GetContainerPath(), err)
		}
		made = append(made, steps.Volume{
			Source: source, Target: filepath.Join("/", m.GetContainerPath()), ReadOnly: true, ImageRef: img.ID,
		})
	}
	return made, nil
}

func (a *Action) mountImage(ctx context.Context, w work, n int, img snapshot.Image) (string, error) {
	name := fmt.Sprint(n)
	path, err := ctrdir.Ensure(a.config, w.id, w.pod, imagesDir, name)
	if err != nil {
		return "", err
	}
	mounts, err := a.store.PrepareRootfs(ctx, w.id+leaseTail+"-"+name, snapshot.RootfsOptions{
		Image: img.ID, Snapshotter: w.rootfs.Snapshotter, Lease: w.id + leaseTail, Kind: kindImages, ReadOnly: true,
		UIDs: w.uids, GIDs: w.gids,
	})
	if err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	if err := mount.All(mounts, path); err != nil {
		return "", fmt.Errorf("mount image %s at %s: %w", img.ID, path, err)
	}
	return path, nil
}

// subPath finds a directory or file below a mounted image. The image cannot change,
// so what is found here is what will be bound into the container.
func subPath(root, path string) (string, error) {
	if path == "" {
		return root, nil
	}
	if filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") {
		return "", fmt.Errorf("sub-path %q is not a path below the image's root: %w", path, errdefs.ErrInvalidArgument)
	}
	f, err := openBeneath(root, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("sub-path %q is not in the image: %w", path, errdefs.ErrNotFound)
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP):
		return "", fmt.Errorf("sub-path %q leads out of the image: %w", path, errdefs.ErrInvalidArgument)
	case err != nil:
		return "", err
	}
	defer func() { _ = f.Close() }()
	found, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return "", fmt.Errorf("find sub-path %q: %w", path, err)
	}
	return found, nil
}
