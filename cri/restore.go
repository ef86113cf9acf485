// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/checkpoint"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// RestorePod makes a pod and its containers from a checkpoint by CheckpointPod. The
// containers are CREATED: StartContainer lets their processes go on where they were. What
// they are given is the request's alone; what differs from what their processes have is
// refused. When it fails nothing is left of the pod.
func (s *Server) RestorePod(ctx context.Context, r *runtime.RestorePodRequest) (*runtime.RestorePodResponse, error) {
	image, err := s.openCheckpoint(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("restore pod from %s: %w", r.GetCheckpointPath(), err)
	}
	defer func() { _ = image.Close() }() // it was only read
	made, err := s.RunPodSandbox(ctx, &runtime.RunPodSandboxRequest{Config: r.GetConfig(), RuntimeHandler: r.GetRuntimeHandler()})
	if err != nil {
		return nil, fmt.Errorf("restore pod from %s: %w", r.GetCheckpointPath(), err)
	}
	answer := &runtime.RestorePodResponse{PodSandboxId: made.GetPodSandboxId()}
	if err := s.restorePod(ctx, r, image, answer); err != nil {
		return nil, fmt.Errorf("restore pod from %s: %w", r.GetCheckpointPath(), err)
	}
	return answer, nil
}

// openCheckpoint opens the checkpoint and refuses what can be refused before anything is made.
func (s *Server) openCheckpoint(ctx context.Context, r *runtime.RestorePodRequest) (*checkpoint.Pod, error) {
	if err := wellFormed("request", r); err != nil {
		return nil, err
	}
	if err := opaqueCall(ctx, r.GetOptions()); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(r.GetCheckpointPath()) {
		return nil, invalid("checkpoint_path %q is not absolute", r.GetCheckpointPath())
	}
	if err := s.checkPod(&runtime.RunPodSandboxRequest{Config: r.GetConfig(), RuntimeHandler: r.GetRuntimeHandler()}); err != nil {
		return nil, err
	}
	var names []string
	for _, c := range r.GetContainerConfigs() {
		names = append(names, c.GetMetadata().GetName())
	}
	slices.Sort(names)
	if len(names) == 0 || names[0] == "" || len(slices.Compact(slices.Clone(names))) != len(names) {
		return nil, invalid("the names in container_configs are %q: they must be there, and differ", names)
	}
	if err := s.canCheckpoint(ctx, r.GetConfig()); err != nil {
		return nil, err
	}
	image, err := checkpoint.Open(r.GetCheckpointPath(), s.madeHere(r.GetRuntimeHandler()))
	if err != nil {
		return nil, err
	}
	if !slices.Equal(names, image.Names()) {
		return nil, errors.Join(invalid("container_configs has %q, the checkpoint %q", names, image.Names()), image.Close())
	}
	return image, nil
}

// restorePod fills the new pod, or removes it.
func (s *Server) restorePod(ctx context.Context, r *runtime.RestorePodRequest, image *checkpoint.Pod, answer *runtime.RestorePodResponse) error {
	id := answer.GetPodSandboxId()
	end, err := s.cuts.begin(id)
	if err == nil {
		defer end()
		err = s.fillPod(ctx, r, image, answer)
	}
	if err == nil {
		err = s.engine.Amend(ctx, steps.Sandbox, id, steps.PodRestore.With(steps.Restore{}))
	}
	if err == nil {
		err = ctx.Err() // nobody would know of the pod
	}
	if err == nil {
		return nil
	}
	if rerr := s.removePod(context.WithoutCancel(ctx), id); rerr != nil {
		return fmt.Errorf("%w (and remove the pod: %w)", err, rerr)
	}
	return err
}

func (s *Server) removePod(ctx context.Context, id string) error {
	_, err := s.RemovePodSandbox(ctx, &runtime.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

func (s *Server) fillPod(ctx context.Context, r *runtime.RestorePodRequest, image *checkpoint.Pod, answer *runtime.RestorePodResponse) error {
	id := answer.GetPodSandboxId()
	if err := s.engine.Amend(ctx, steps.Sandbox, id, steps.PodRestore.With(steps.Restore{Pending: true})); err != nil {
		return err
	}
	p, err := s.readyPod(id)
	if err != nil {
		return err
	}
	files, _, err := steps.PodFiles.Get(p.View)
	if err != nil {
		return err
	}
	if files.Shm != "" {
		if err := image.FillShm(ctx, files.Shm); err != nil {
			return err
		}
	}
	for _, config := range r.GetContainerConfigs() {
		name := config.GetMetadata().GetName()
		made, err := s.restoreContainer(ctx, &runtime.CreateContainerRequest{PodSandboxId: id, Config: config, SandboxConfig: r.GetConfig()}, image)
		if err != nil {
			return fmt.Errorf("container %q: %w", name, err)
		}
		answer.RestoredContainers = append(answer.RestoredContainers, &runtime.RestoredContainer{Name: name, ContainerId: made})
	}
	return nil
}

// restoreContainer makes a container as the request has it, compares it with what it was,
// and gives it what it had.
func (s *Server) restoreContainer(ctx context.Context, r *runtime.CreateContainerRequest, image *checkpoint.Pod) (string, error) {
	name := r.GetConfig().GetMetadata().GetName()
	was, err := image.Config(name)
	if err != nil {
		return "", err
	}
	made, err := s.createContainer(ctx, r, true)
	if err != nil {
		return "", err
	}
	c, err := s.findContainer(made.GetContainerId())
	if err != nil {
		return "", err
	}
	if c.request.Image.ID != was.RootfsImageRef {
		return "", invalid("its image is %s, and was %s", c.request.Image.ID, was.RootfsImageRef)
	}
	ran, err := image.Spec(name)
	if err != nil {
		return "", err
	}
	written, err := bundle.ReadSpec(s.config.ContainerDir(c.ID))
	if err != nil {
		return "", err
	}
	if err := checkpoint.Compatible(ran, written); err != nil {
		return "", err
	}
	return c.ID, s.fillContainer(ctx, c, image)
}

func (s *Server) fillContainer(ctx context.Context, c container, image *checkpoint.Pod) error {
	rootfs, err := steps.ContainerRootfs.Need(c.View)
	if err != nil {
		return err
	}
	volumes, err := s.ownVolumes(c)
	if err != nil {
		return err
	}
	return image.Fill(ctx, c.config.GetMetadata().GetName(), checkpoint.Target{
		Dump:   filepath.Join(s.config.DumpDir(c.ID), metadata.CheckpointDirectory),
		Rootfs: rootfs.Path, Volumes: volumes,
	})
}
