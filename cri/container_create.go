// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// CreateContainer climbs the container's ladder to "created". When it fails,
// everything is undone before the error is returned.
func (s *Server) CreateContainer(ctx context.Context, r *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
	return s.createContainer(ctx, r, false)
}

// createContainer makes a container; the processes of one that is restored come from a dump.
func (s *Server) createContainer(ctx context.Context, r *runtime.CreateContainerRequest, restored bool) (*runtime.CreateContainerResponse, error) {
	p, err := s.readyPod(r.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	request, err := s.containerRequest(ctx, p, r.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("create container %q in sandbox %s: %w", r.GetConfig().GetMetadata().GetName(), p.ID, err)
	}
	request.Restored = restored
	view, err := p.view()
	if err != nil {
		return nil, fmt.Errorf("create container in sandbox %s: %w", p.ID, err)
	}
	id, name := newID(), containerName(p.ID, r.GetConfig().GetMetadata())
	err = s.engine.Climb(ctx, steps.Container, steps.Create, id, engine.ClimbOptions{
		Name: name, Values: []engine.Value{steps.ContainerRequest.With(request), steps.ContainerPod.With(view)},
	})
	if made, ok := s.unclaimed.claim(err, r); ok {
		return &runtime.CreateContainerResponse{ContainerId: made}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create container %q in sandbox %s: %w", r.GetConfig().GetMetadata().GetName(), p.ID, err)
	}
	// A pod that has begun to go down meanwhile may have missed this container.
	if _, err := s.readyPod(p.ID); err != nil {
		return nil, s.takeBack(ctx, id, err)
	}
	if ctx.Err() != nil {
		s.unclaimed.add(id, r)
	}
	return &runtime.CreateContainerResponse{ContainerId: id}, nil
}

func (s *Server) takeBack(ctx context.Context, id string, cause error) error {
	if err := s.remove(context.WithoutCancel(ctx), id); err != nil {
		return fmt.Errorf("create container %s: %w (and take it back: %w)", id, cause, err)
	}
	return fmt.Errorf("create container %s: %w", id, cause)
}

func (s *Server) readyPod(id string) (pod, error) {
	p, err := s.findPod(id)
	if err != nil {
		return pod{}, err
	}
	if p.state() != runtime.PodSandboxState_SANDBOX_READY {
		return pod{}, fmt.Errorf("sandbox %s is not ready: %w", p.ID, errdefs.ErrFailedPrecondition)
	}
	return p, nil
}

// containerRequest checks the request and resolves what the ladder is given:
// image, log path, stop signal, target of the PID namespace.
func (s *Server) containerRequest(ctx context.Context, p pod, c *runtime.ContainerConfig) (steps.Ctr, error) {
	request := steps.Ctr{PodID: p.ID, Config: protoOf(c)}
	if err := s.checkContainer(p, c); err != nil {
		return request, err
	}
	request.Created = s.containerCreated(p, c.GetMetadata().GetName())
	image, err := s.services.Store.Image(ctx, c.GetImage().GetImage())
	if err != nil {
		return request, fmt.Errorf("find its image %q: %w", c.GetImage().GetImage(), err)
	}
	request.Image = steps.Image{
		ID: image.ID, Ref: imageRef(image), Config: image.Spec.Config, Arch: image.Spec.Architecture,
	}
	if request.StopSignal, err = spec.StopSignal(image.Spec.Config.StopSignal, c.GetStopSignal()); err != nil {
		return request, err
	}
	if request.LogPath, err = logPath(p.config.GetLogDirectory(), c.GetLogPath()); err != nil {
		return request, err
	}
	request.TargetPID, err = s.targetPID(p, c)
	return request, err
}

func (s *Server) checkContainer(p pod, c *runtime.ContainerConfig) error {
	if c == nil {
		return invalid("config is missing")
	}
	if c.GetMetadata() == nil {
		return invalid("config.metadata is missing")
	}
	if err := wellFormed("config", c); err != nil {
		return err
	}
	if err := plainName("config.metadata.name", c.GetMetadata().GetName()); err != nil {
		return err
	}
	if err := boundedLabels(c.GetLabels(), c.GetAnnotations()); err != nil {
		return err
	}
	if err := boundedImage(c.GetImage()); err != nil {
		return err
	}
	return spec.Validate(c, p.config, s.config)
}

// imageRef is the reference reported to clients: a digest of the repository
// where there is one, since users look images up by it; else the image's ID.
func imageRef(i snapshot.Image) string {
	if len(i.RepoDigests) > 0 {
		return i.RepoDigests[0]
	}
	return i.ID
}

// logPath joins the pod's log directory and the container's path in it. Without
// either there is no log: the output is drained.
func logPath(dir, path string) (string, error) {
	if dir == "" || path == "" {
		return "", nil
	}
	full := filepath.Join(dir, path)
	if rel, err := filepath.Rel(dir, full); err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", invalid("config.log_path %q leaves the log directory %s", path, dir)
	}
	return full, nil
}

// targetPID finds the process whose PID namespace is joined (NamespaceMode TARGET):
// that of a running container of the same pod.
func (s *Server) targetPID(p pod, c *runtime.ContainerConfig) (int, error) {
	o := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetPid() != runtime.NamespaceMode_TARGET {
		return 0, nil
	}
	target, err := s.findContainer(o.GetTargetId())
	if err != nil {
		return 0, invalid("namespace_options.target_id: %v", err)
	}
	if target.request.PodID != p.ID {
		return 0, invalid("namespace_options.target_id: container %s is of another sandbox", target.ID)
	}
	if err := target.running(); err != nil {
		return 0, invalid("namespace_options.target_id: %v", err)
	}
	return target.pid(), nil
}
