// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandboxcontainer is the action that runs a sandbox container, for
// runtimes that make their sandbox (a virtual machine, say) from one.
package sandboxcontainer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

const (
	dirName    = "sandbox" // in the pod's directory: the bundle
	rootfsName = "rootfs"
)

func init() {
	steps.Register("sandbox-container", func(s *steps.Services) engine.Action { return New(s.Config, s.Store, s.Runtime) })
}

// Store is the part of the image store that the action uses.
type Store interface {
	Image(ctx context.Context, ref string) (snapshot.Image, error)
	Pull(ctx context.Context, ref string, auth *snapshot.Auth, o snapshot.PullOptions) (snapshot.Image, error)
	PrepareRootfs(ctx context.Context, key string, o snapshot.RootfsOptions) ([]mount.Mount, error)
	RemoveRootfs(ctx context.Context, lease string) error
}

// Action is the action "sandbox-container". Its resources are the container
// called as the pod, its snapshot, and what lies in <PodDir>/sandbox.
type Action struct {
	cfg     steps.Config
	store   Store
	runtime *runtime.Manager
}

var (
	_ engine.Action      = (*Action)(nil)
	_ engine.Needer      = (*Action)(nil)
	_ engine.Conditional = (*Action)(nil)
	_ engine.Sweeper     = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config, s Store, m *runtime.Manager) *Action {
	return &Action{cfg: c, store: s, runtime: m}
}

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key {
	return []engine.Key{steps.PodRequest.Key(), steps.PodNamespaces.Key()}
}

// Applies is part of engine.Conditional.
func (a *Action) Applies(r *engine.Run) bool {
	req, ok, err := steps.PodRequest.Get(r)
	if err != nil || !ok {
		return false // the action shim says what is wrong
	}
	rt, ok := a.cfg.RuntimeFor(req.Handler)
	return ok && rt.Sandbox == "container"
}

// Do runs the sandbox container.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.PodRequest.Need(r)
	if err != nil {
		return err
	}
	ns, err := steps.PodNamespaces.Need(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.run(ctx, r.ID(), req, ns); err != nil {
		return fmt.Errorf("run sandbox container of pod %s: %w", r.ID(), err)
	}
	return nil
}

func (a *Action) run(ctx context.Context, id string, req steps.Pod, ns steps.Namespaces) error {
	img, err := a.image(ctx)
	if err != nil {
		return err
	}
	podDir, err := pod.Ensure(a.cfg, id, req.Config.M)
	if err != nil {
		return err
	}
	dir := filepath.Join(podDir, dirName)
	root := filepath.Join(dir, rootfsName)
	for _, d := range []string{dir, root} {
		if err := pod.MakeDir(d); err != nil {
			return err
		}
	}
	p := runtime.Pod{ID: id, Handler: req.Handler}
	if err := bundle.WritePod(dir, p); err != nil { // before anything is made that it helps to find
		return err
	}
	rt, _ := a.cfg.RuntimeFor(req.Handler)
	mounts, err := a.store.PrepareRootfs(ctx, id, snapshot.RootfsOptions{Image: img.ID, Snapshotter: rt.Snapshotter})
	if err != nil {
		return fmt.Errorf("prepare root file system: %w", err)
	}
	if err := mount.All(mounts, root); err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	if err := bundle.WriteSpec(dir, a.spec(id, req, ns, img)); err != nil {
		return err
	}
	tasks, err := a.runtime.Tasks(p)
	if err != nil {
		return err
	}
	if _, err := tasks.Create(ctx, runtime.CreateRequest{ID: id, Bundle: dir}); err != nil {
		return err
	}
	return tasks.Start(ctx, id)
}

// image is the sandbox image, pulled if it is not there.
func (a *Action) image(ctx context.Context) (snapshot.Image, error) {
	if a.cfg.SandboxImage == "" {
		return snapshot.Image{}, fmt.Errorf("no sandbox image is configured: %w", errdefs.ErrFailedPrecondition)
	}
	img, err := a.store.Image(ctx, a.cfg.SandboxImage)
	if errdefs.IsNotFound(err) {
		img, err = a.store.Pull(ctx, a.cfg.SandboxImage, nil, snapshot.PullOptions{})
	}
	if err != nil {
		return img, fmt.Errorf("sandbox image %s: %w", a.cfg.SandboxImage, err)
	}
	return img, nil
}

// Undo removes the container, its root file system and its bundle.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.remove(ctx, r.ID()) }

func (a *Action) remove(ctx context.Context, id string) error {
	podDir, err := pod.Dir(a.cfg, id)
	if err != nil {
		return err
	}
	dir := filepath.Join(podDir, dirName)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := a.removeTask(ctx, id, dir); err != nil {
		return err
	}
	root := filepath.Join(dir, rootfsName)
	if err := pod.Unmount(root); err != nil {
		return err
	}
	if err := unix.Rmdir(root); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove directory %s: %w", root, err)
	}
	if err := a.store.RemoveRootfs(ctx, id); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return pod.Release(a.cfg, id)
}

func (a *Action) removeTask(ctx context.Context, id, dir string) error {
	var p runtime.Pod
	err := bundle.ReadPod(dir, &p)
	if errdefs.IsNotFound(err) {
		return nil // nothing was begun
	}
	if err != nil {
		return err
	}
	tasks, err := a.runtime.Tasks(p)
	if err != nil {
		return err
	}
	_, err = tasks.Delete(ctx, id, dir)
	return err
}

// Sweep removes sandbox containers of pods that no record knows.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	left, err := filepath.Glob(filepath.Join(a.cfg.PodDir("*"), dirName))
	if err != nil {
		return fmt.Errorf("list sandbox containers: %w", err)
	}
	for _, dir := range left {
		id := filepath.Base(filepath.Dir(dir))
		if !s.Known(steps.Sandbox, id) {
			s.Remove("sandbox container", id, func() error { return a.remove(ctx, id) })
		}
	}
	return nil
}
