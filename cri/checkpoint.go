// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/checkpoint"
	"github.com/sandflow-cri/sandflow/cri/seconds"
	"github.com/sandflow-cri/sandflow/steps"
	podcheck "github.com/sandflow-cri/sandflow/steps/pod"
)

// checkpointTimeout bounds CheckpointContainer where the request does not.
const checkpointTimeout = 10 * time.Minute

// partial is the end of names of what a checkpoint in the making writes.
const partial = ".partial"

// CheckpointContainer writes a checkpoint of a running container as a tar file at the
// request's location, in the format of checkpointctl, within the request's timeout in
// seconds. The container runs on; when it fails nothing is left at the location.
func (s *Server) CheckpointContainer(ctx context.Context, r *runtime.CheckpointContainerRequest) (*runtime.CheckpointContainerResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("checkpoint container: %w", err)
	}
	timeout := checkpointTimeout
	if r.GetTimeout() > 0 {
		timeout = seconds.Duration(r.GetTimeout())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err = s.mayCheckpointContainer(ctx, c, r); err == nil {
		err = s.checkpointContainer(ctx, c, r.GetLocation())
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint container %s: %w", c.ID, err)
	}
	return &runtime.CheckpointContainerResponse{}, nil
}

func (s *Server) mayCheckpointContainer(ctx context.Context, c container, r *runtime.CheckpointContainerRequest) error {
	if err := wellFormed("request", r); err != nil {
		return err
	}
	if r.GetTimeout() < 0 {
		return invalid("timeout is negative")
	}
	location := r.GetLocation()
	if !filepath.IsAbs(location) || filepath.Clean(location) != location {
		return invalid("location %q is not a clean absolute path", location)
	}
	if st, err := os.Lstat(location); err == nil && !st.Mode().IsRegular() {
		return invalid("location %s is there already, and is no file", location)
	}
	if err := c.running(); err != nil {
		return err
	}
	p, err := s.readyPod(c.request.PodID)
	if err != nil {
		return err
	}
	return s.canCheckpoint(ctx, p.config)
}

func (s *Server) checkpointContainer(ctx context.Context, c container, location string) error {
	tag := "." + newID()[:minPrefix*2] + partial
	stage := filepath.Join(s.config.VolumeDir(c.ID), tag)
	half := location + tag
	cut := steps.Cut{Containers: []string{c.ID}, Paths: []string{stage, half}}
	return s.withCut(ctx, c.request.PodID, cut, func() error {
		if err := s.takeAll(ctx, []container{c}, func(string) string { return stage }); err != nil {
			return err
		}
		if err := checkpoint.Pack(ctx, stage, half); err != nil {
			return err
		}
		return os.Rename(half, location)
	})
}

// CheckpointPod writes a checkpoint of running containers of a pod into the request's
// empty directory. All are frozen before any is dumped, and all run again before it
// returns, whatever happened; when it fails the directory is as empty as it was.
func (s *Server) CheckpointPod(ctx context.Context, r *runtime.CheckpointPodRequest) (*runtime.CheckpointPodResponse, error) {
	p, err := s.findPod(r.GetPodSandboxId())
	if err != nil {
		return nil, fmt.Errorf("checkpoint sandbox: %w", err)
	}
	selected, err := s.mayCheckpointPod(ctx, p, r)
	if err == nil {
		err = s.checkpointPod(ctx, p, selected, r.GetOutputPath())
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint sandbox %s: %w", p.ID, err)
	}
	return &runtime.CheckpointPodResponse{}, nil
}

func (s *Server) mayCheckpointPod(ctx context.Context, p pod, r *runtime.CheckpointPodRequest) ([]container, error) {
	if err := wellFormed("request", r); err != nil {
		return nil, err
	}
	if err := opaqueCall(ctx, r.GetOptions()); err != nil {
		return nil, err
	}
	if err := emptyDirectory(r.GetOutputPath()); err != nil {
		return nil, err
	}
	if _, err := s.readyPod(p.ID); err != nil {
		return nil, err
	}
	selected, err := s.selected(p, r.GetContainerIds())
	if err != nil {
		return nil, err
	}
	return selected, s.canCheckpoint(ctx, p.config)
}

// opaqueCall checks what the calls for checkpoints of pods have in common.
func opaqueCall(ctx context.Context, options map[string]string) error {
	if _, ok := ctx.Deadline(); !ok {
		return invalid("the call has no deadline")
	}
	for key := range options {
		return invalid("options: %q is not known; there are none", key)
	}
	return nil
}

func emptyDirectory(path string) error {
	if !filepath.IsAbs(path) {
		return invalid("output_path %q is not absolute", path)
	}
	if st, err := os.Lstat(path); err != nil || !st.IsDir() {
		return invalid("output_path %s is not a directory", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("read output_path: %w", err)
	}
	if len(entries) > 0 {
		return invalid("output_path %s is not empty", path)
	}
	return nil
}

// selected finds the containers of the request: running ones of the pod, each once.
func (s *Server) selected(p pod, ids []string) ([]container, error) {
	if len(ids) == 0 {
		return nil, invalid("container_ids is empty")
	}
	found, seen := make([]container, 0, len(ids)), map[string]bool{}
	for _, id := range ids {
		c, err := s.findContainer(id)
		if err != nil {
			return nil, err
		}
		if c.request.PodID != p.ID {
			return nil, invalid("container %s is of another sandbox", c.ID)
		}
		if seen[c.ID] {
			return nil, invalid("container_ids has %s twice", c.ID)
		}
		if err := c.running(); err != nil {
			return nil, err
		}
		seen[c.ID] = true
		found = append(found, c)
	}
	return found, nil
}

func (s *Server) checkpointPod(ctx context.Context, p pod, selected []container, out string) error {
	half := filepath.Join(out, "."+newID()[:minPrefix*2]+partial)
	cut, names := steps.Cut{Paths: []string{half}}, map[string]string{}
	for _, c := range selected {
		cut.Containers = append(cut.Containers, c.ID)
		names[c.config.GetMetadata().GetName()] = c.ID
	}
	if len(names) != len(selected) {
		return invalid("two of the containers have the same name")
	}
	return s.withCut(ctx, p.ID, cut, func() error {
		if err := os.Mkdir(half, 0o700); err != nil {
			return err
		}
		if err := s.takeAll(ctx, selected, func(id string) string { return filepath.Join(half, id) }); err != nil {
			return err
		}
		if err := checkpoint.WritePod(half, s.madeHere(p.request.Handler), names); err != nil {
			return err
		}
		return moveUp(half, out)
	})
}

// moveUp moves all that is in dir to where it is wanted, or nothing.
func moveUp(dir, to string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for i, e := range entries {
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(to, e.Name())); err != nil {
			for _, moved := range entries[:i] {
				_ = os.RemoveAll(filepath.Join(to, moved.Name())) // the error at hand is the one to tell
			}
			return err
		}
	}
	return nil
}

// canCheckpoint tells why containers of a pod cannot be dumped or restored here.
func (s *Server) canCheckpoint(ctx context.Context, c *runtime.PodSandboxConfig) error {
	if err := s.cuts.criu.Usable(ctx); err != nil {
		return err
	}
	if _, own := podcheck.UserNamespace(c); own {
		return fmt.Errorf("pods with a user namespace of their own cannot be dumped: %w", errdefs.ErrNotImplemented)
	}
	return nil
}

// madeHere says what kind of checkpoints a handler makes and takes.
func (s *Server) madeHere(handler string) checkpoint.Made {
	rt, _ := s.config.RuntimeFor(handler)
	return checkpoint.Made{Runtime: strings.Trim(rt.Type+" "+filepath.Base(rt.Binary), " ."), Arch: goarch}
}
