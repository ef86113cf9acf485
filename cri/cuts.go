// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	goruntime "runtime"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cri/checkpoint"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs/ctrdir"
)

const (
	goarch = goruntime.GOARCH
	// dumpsAtOnce is how many containers of a pod are dumped side by side.
	dumpsAtOnce = 4
	// baseName is the directory, beside a container's volumes, at which its image is
	// mounted while it is compared with; baseTail ends the key of that snapshot, which
	// the container's own lease has.
	baseName = "base"
	baseTail = "-base"
)

var errBusy = errors.New("it is being checkpointed or restored")

// cuts are the checkpoints and restorations in flight. mu guards busy.
type cuts struct {
	criu   checkpoint.CRIU
	broken chan struct{} // has room for one: something is to be put right

	mu   sync.Mutex
	busy map[string]bool // pods
}

func newCuts() *cuts {
	return &cuts{broken: make(chan struct{}, 1), busy: map[string]bool{}}
}

// breaks has what is left of a cut put right soon.
func (c *cuts) breaks() {
	select {
	case c.broken <- struct{}{}:
	default:
	}
}

// begin enters a pod; there is one checkpoint of a pod at a time. end must be called.
func (c *cuts) begin(podID string) (end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy[podID] {
		return nil, fmt.Errorf("sandbox %s: %w: %w", podID, errBusy, errdefs.ErrFailedPrecondition)
	}
	c.busy[podID] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, podID)
	}, nil
}

// warnings tell operators what cannot be done here.
func (c *cuts) warnings(ctx context.Context) []string {
	if err := c.criu.Usable(ctx); err != nil {
		return []string{"checkpoint and restore are unavailable: " + err.Error()}
	}
	return nil
}

// withCut runs f, which freezes containers and writes to paths, with that noted in the
// pod's record. The paths are removed afterwards; what f wants to keep it has renamed.
func (s *Server) withCut(ctx context.Context, podID string, cut steps.Cut, f func() error) error {
	end, err := s.cuts.begin(podID)
	if err != nil {
		return err
	}
	defer end()
	if err := s.mendCut(ctx, podID); err != nil { // of a cut before, that could not thaw all
		return err
	}
	if err := s.engine.Amend(ctx, steps.Sandbox, podID, steps.PodCut.With(cut)); err != nil {
		return err
	}
	err = f()
	after := context.WithoutCancel(ctx)
	if rerr := removePaths(cut.Paths); rerr != nil {
		return errors.Join(err, rerr)
	}
	for _, id := range cut.Containers {
		_ = ctrdir.RemoveEmpty(s.config.VolumeDir(id)) // else it goes with the container
	}
	if errors.Is(err, checkpoint.ErrFrozen) {
		s.cuts.breaks()
		return err // the note stays until they are thawed
	}
	cerr := s.engine.Amend(after, steps.Sandbox, podID, steps.PodCut.With(steps.Cut{}))
	if cerr != nil && !errors.Is(cerr, engine.ErrNotFound) {
		klog.FromContext(ctx).Error(cerr, "Could not note the end of a checkpoint", "sandbox", podID)
	}
	return err
}

func removePaths(paths []string) error {
	var errs []error
	for _, p := range paths {
		if err := os.RemoveAll(p); err != nil {
			errs = append(errs, fmt.Errorf("remove what is half-made: %w", err))
		}
	}
	return errors.Join(errs...)
}

// takeAll takes a checkpoint of containers of one pod, as one cut, each into its directory.
func (s *Server) takeAll(ctx context.Context, list []container, dir func(id string) string) error {
	members := make([]checkpoint.Member, 0, len(list))
	sources := make([]*checkpoint.Container, 0, len(list))
	for _, c := range list {
		tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
		if err != nil {
			return err
		}
		source, err := s.source(c)
		if err != nil {
			return err
		}
		source.Tasks = tasks
		defer s.dropBase(context.WithoutCancel(ctx), c)
		if source.Base, err = s.mountBase(ctx, c); err != nil {
			return fmt.Errorf("mount the image of container %s: %w", c.ID, err)
		}
		if err := source.Describe(dir(c.ID)); err != nil {
			return err
		}
		sources = append(sources, source)
		members = append(members, checkpoint.Member{ID: c.ID, Freezer: tasks})
	}
	return checkpoint.Cut(ctx, members, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(dumpsAtOnce)
		for _, source := range sources {
			g.Go(func() error { return source.Take(ctx, dir(source.ID)) })
		}
		return g.Wait()
	})
}

// source is what a checkpoint takes of a container.
func (s *Server) source(c container) (*checkpoint.Container, error) {
	rootfs, err := steps.ContainerRootfs.Need(c.View)
	if err != nil {
		return nil, err
	}
	volumes, err := s.ownVolumes(c)
	if err != nil {
		return nil, err
	}
	view, err := steps.ContainerPod.Need(c.View)
	if err != nil {
		return nil, err
	}
	rt, _ := s.config.RuntimeFor(view.Pod.Handler)
	status := c.status()
	return &checkpoint.Container{
		ID: c.ID, Terminal: c.config.GetTty(), Bundle: s.config.ContainerDir(c.ID), Rootfs: rootfs.Path,
		Volumes: volumes, Shm: view.Files.Shm,
		Config: metadata.ContainerConfig{
			ID: c.ID, Name: c.config.GetMetadata().GetName(),
			RootfsImage: c.image().GetImage(), RootfsImageRef: c.request.Image.ID, RootfsImageName: c.request.Image.Ref,
			OCIRuntime: filepath.Base(rt.Binary), CreatedTime: time.Unix(0, c.created()), CheckpointedAt: time.Now(),
		},
		Status: metadata.ContainerdStatus{CreatedAt: status.GetCreatedAt(), StartedAt: status.GetStartedAt(), Pid: uint32(c.pid())}, //nolint:gosec // a PID
	}, nil
}

// ownVolumes are the directories of the image's volumes of a container.
func (s *Server) ownVolumes(c container) ([]string, error) {
	v, err := steps.ContainerVolumes.Need(c.View)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, m := range v.Mounts {
		if m.ImageRef == "" && filepath.Dir(m.Source) == s.config.VolumeDir(c.ID) {
			dirs = append(dirs, m.Source)
		}
	}
	return dirs, nil
}

// mountBase mounts the image of a container, read-only.
func (s *Server) mountBase(ctx context.Context, c container) (string, error) {
	rootfs, err := steps.ContainerRootfs.Need(c.View)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.config.VolumeDir(c.ID), baseName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	mounts, err := s.services.Store.PrepareRootfs(ctx, c.ID+baseTail, snapshot.RootfsOptions{
		Image: c.request.Image.ID, Snapshotter: rootfs.Snapshotter, Lease: c.ID, ReadOnly: true,
	})
	if err != nil {
		return "", err
	}
	return dir, mount.All(mounts, dir)
}

// dropBase undoes mountBase. Where it cannot, the removal of the container does.
func (s *Server) dropBase(ctx context.Context, c container) {
	dir := filepath.Join(s.config.VolumeDir(c.ID), baseName)
	err := ctrdir.RemoveMountpoint(dir)
	if err == nil {
		err = ctrdir.RemoveEmpty(filepath.Dir(dir))
	}
	if rootfs, ok, _ := steps.ContainerRootfs.Get(c.View); ok && err == nil {
		store := s.services.Store
		if _, gone := os.Lstat(rootfs.Path); errors.Is(gone, fs.ErrNotExist) {
			err = store.RemoveRootfs(ctx, c.ID) // it was removed meanwhile, and its lease came back with the base
		} else {
			ctx := leases.WithLease(store.Context(ctx), c.ID)
			err = store.Client().SnapshotService(rootfs.Snapshotter).Remove(ctx, c.ID+baseTail)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		klog.FromContext(ctx).Error(err, "Could not unmount the image that a container was compared with", "container", c.ID)
	}
}

// mendCheckpoints puts right what a daemon that died in a checkpoint or a restoration
// left, and later what a checkpoint could not thaw: it thaws frozen containers, and
// removes what is half-made. It tries again until nothing is left; ctx ends it.
func (s *Server) mendCheckpoints(ctx context.Context) {
	const shortest, longest = 2 * time.Second, 5 * time.Minute
	for pause := shortest; ; {
		var again <-chan time.Time
		if s.mendAll(ctx) {
			pause = shortest
		} else {
			again = time.After(pause)
			pause = min(2*pause, longest)
		}
		select {
		case <-again:
		case <-s.cuts.broken:
		case <-ctx.Done():
			return
		}
	}
}

// mendAll tells whether all is right.
func (s *Server) mendAll(ctx context.Context) bool {
	var g errgroup.Group
	for _, v := range s.engine.List(steps.Sandbox) {
		cut, _, _ := steps.PodCut.Get(v) // a damaged slot is listed as such
		restore, _, _ := steps.PodRestore.Get(v)
		if len(cut.Containers) == 0 && !restore.Pending {
			continue
		}
		g.Go(func() error {
			err := s.mend(ctx, v.ID, restore.Pending)
			if err != nil && !errors.Is(err, errBusy) {
				klog.FromContext(ctx).Error(err, "Could not put right what a checkpoint has left", "sandbox", v.ID)
			}
			return err
		})
	}
	return g.Wait() == nil
}

func (s *Server) mend(ctx context.Context, podID string, half bool) error {
	end, err := s.cuts.begin(podID)
	if err != nil {
		return err // it is of this daemon, and in flight
	}
	defer end()
	if half {
		klog.FromContext(ctx).Info("Removing a sandbox whose restoration was cut off", "sandbox", podID)
		return s.removePod(ctx, podID)
	}
	klog.FromContext(ctx).Info("Thawing containers whose checkpoint was cut off", "sandbox", podID)
	return s.mendCut(ctx, podID)
}

// mendCut undoes what is noted of a cut that has not ended in order.
func (s *Server) mendCut(ctx context.Context, podID string) error {
	v, ok := s.engine.Get(steps.Sandbox, podID)
	if !ok {
		return nil
	}
	cut, noted, err := steps.PodCut.Get(v)
	if err != nil || !noted || len(cut.Containers)+len(cut.Paths) == 0 {
		return err
	}
	var members []checkpoint.Member
	for _, id := range cut.Containers {
		c, err := s.findContainer(id)
		if err != nil || c.running() != nil {
			continue // it has ended since
		}
		tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
		if err != nil {
			return err
		}
		members = append(members, checkpoint.Member{ID: c.ID, Freezer: tasks})
		s.dropBase(ctx, c)
	}
	if err := errors.Join(checkpoint.Thaw(ctx, members), removePaths(cut.Paths)); err != nil {
		return err
	}
	return s.engine.Amend(ctx, steps.Sandbox, podID, steps.PodCut.With(steps.Cut{}))
}
