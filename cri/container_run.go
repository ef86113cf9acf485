// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cri/seconds"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

const (
	// startErrorCode is what a process that could not be started is said to
	// have exited with, as other runtimes do.
	startErrorCode = 128
	startError     = "StartError"
	// killWait is how long a container has to end after SIGKILL before its task
	// is taken down by force, without the help of its shim if need be.
	killWait = 10 * time.Second
	// signalWait is how long a shim has to deliver a signal.
	signalWait = 3 * time.Second
)

// StartContainer climbs from "created" to "running". A start that fails stands
// at "created", as exited with reason StartError.
func (s *Server) StartContainer(ctx context.Context, r *runtime.StartContainerRequest) (*runtime.StartContainerResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	err = s.engine.Climb(ctx, steps.Container, steps.Start, c.ID, engine.ClimbOptions{
		Admit: s.admitStart, // a start before this may have failed, or the pod be gone
	})
	if err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.ID, err)
	}
	s.monitor.container(c.ID) //nolint:contextcheck // see watch
	// A pod that has begun to go down meanwhile may have missed this container.
	if err := s.podStands(c.request.PodID); err != nil {
		return nil, fmt.Errorf("start container %s: %w", c.ID, errors.Join(err, s.kill(context.WithoutCancel(ctx), c.ID)))
	}
	return &runtime.StartContainerResponse{}, nil
}

// admitStart refuses to start what has been started before, and what is in a pod that is not ready.
func (s *Server) admitStart(v *engine.View) error {
	c := newContainer(v)
	if c.state() != runtime.ContainerState_CONTAINER_CREATED {
		return fmt.Errorf("it is %s, not created: %w", stateName(c.state()), errdefs.ErrFailedPrecondition)
	}
	_, err := s.readyPod(c.request.PodID)
	return err
}

// podStands tells of a pod that is down or on its way there. One that has only lost its shim
// is no reason to kill what runs in it.
func (s *Server) podStands(id string) error {
	p, err := s.findPod(id)
	if err == nil && (p.Station != steps.Ready || p.Phase != engine.Standing) {
		err = fmt.Errorf("sandbox %s has been stopped meanwhile: %w", id, errdefs.ErrFailedPrecondition)
	}
	return err
}

// StopContainer sends the stop signal, waits for the grace period in seconds,
// then kills. It answers as soon as the process has ended and its output is
// written; its task is deleted behind. Unknown, created or ended: success.
func (s *Server) StopContainer(ctx context.Context, r *runtime.StopContainerRequest) (*runtime.StopContainerResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if errors.Is(err, errdefs.ErrNotFound) {
		return &runtime.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stop container: %w", err)
	}
	if c.atRest() {
		return &runtime.StopContainerResponse{}, nil
	}
	if grace := seconds.Duration(r.GetTimeout()); grace > 0 && c.running() == nil {
		ended, err := s.stopGently(ctx, c, grace)
		if err != nil {
			return nil, fmt.Errorf("stop container %s: %w", c.ID, err)
		}
		if ended {
			return &runtime.StopContainerResponse{}, nil
		}
	}
	if err := s.kill(ctx, c.ID); err != nil {
		return nil, fmt.Errorf("stop container %s: %w", c.ID, err)
	}
	return &runtime.StopContainerResponse{}, nil
}

// stopGently asks the container to end and waits for that. It is false if that did not come
// about, also because the container could not be asked.
func (s *Server) stopGently(ctx context.Context, c container, grace time.Duration) (bool, error) {
	left, again, err := s.beginStop(ctx, c.ID, grace)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		// It is stopped all the same; only a restart would forget that.
		klog.FromContext(ctx).Error(err, "Could not record that a container is being stopped", "container", c.ID)
	}
	if !again {
		if err := s.signal(ctx, c, stopSignal(c.request.StopSignal)); err != nil {
			klog.FromContext(ctx).Error(err, "Could not send the stop signal; killing", "container", c.ID)
			return false, nil
		}
	}
	ended, err := s.waitExit(ctx, c.ID, left)
	if err != nil {
		s.goOnStopping(c.ID) //nolint:contextcheck // see watch
	}
	return ended, err
}

func stopSignal(name string) syscall.Signal {
	if sig, err := spec.ParseSignal(name); err == nil {
		return sig
	}
	return syscall.SIGTERM
}

// signal sends a signal. A shim that hangs is not waited for longer than signalWait:
// then the container must go without its help.
func (s *Server) signal(ctx context.Context, c container, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalWait)
	defer cancel()
	tasks, err := s.services.Runtime.Tasks(s.monitor.podOf(c))
	if err != nil {
		return err
	}
	return tasks.Kill(ctx, c.ID, uint32(sig), false)
}

// kill ends a container that may be running: by SIGKILL, and where that shows
// no exit in time, by taking the task down from outside.
func (s *Server) kill(ctx context.Context, id string) error {
	c, err := s.findContainer(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if c.atRest() {
		return nil
	}
	if c.Phase == engine.Standing {
		if err := s.signal(ctx, c, syscall.SIGKILL); err == nil {
			if ended, err := s.waitExit(ctx, id, killWait); ended || err != nil {
				return err
			}
		}
	}
	return s.monitor.forceStop(ctx, id)
}

// waitExit waits until the exit is recorded: true, or false after d.
func (s *Server) waitExit(ctx context.Context, id string, d time.Duration) (bool, error) {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	for {
		changed := s.engine.Watch(steps.Container, id)
		v, ok := s.engine.Get(steps.Container, id)
		if !ok || newContainer(v).exit != nil {
			return true, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// RemoveContainer goes down to the ground, killing what still runs. Unknown: success.
func (s *Server) RemoveContainer(ctx context.Context, r *runtime.RemoveContainerRequest) (*runtime.RemoveContainerResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if errors.Is(err, errdefs.ErrNotFound) {
		return &runtime.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remove container: %w", err)
	}
	if err := s.remove(ctx, c.ID); err != nil {
		return nil, fmt.Errorf("remove container %s: %w", c.ID, err)
	}
	return &runtime.RemoveContainerResponse{}, nil
}

func (s *Server) remove(ctx context.Context, id string) error {
	if err := s.kill(ctx, id); err != nil {
		return err
	}
	err := s.engine.Descend(ctx, steps.Container, steps.Remove, id, engine.DescendOptions{Interrupt: true})
	if err == nil {
		s.unclaimed.forget(id)
		s.stats.Forget(id)
		s.layerUse.forget(id)
	}
	return err
}

// ListContainers never waits for a container that is moving.
func (s *Server) ListContainers(_ context.Context, r *runtime.ListContainersRequest) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{Containers: slices.Collect(s.listContainers(r.GetFilter()))}, nil
}

func matchContainer(c *runtime.Container, f *runtime.ContainerFilter) bool {
	return hasPrefix(c.GetId(), f.GetId()) && hasPrefix(c.GetPodSandboxId(), f.GetPodSandboxId()) &&
		(f.GetState() == nil || f.GetState().GetState() == c.GetState()) &&
		hasLabels(c.GetLabels(), f.GetLabelSelector())
}

// ContainerStatus tells one container.
func (s *Server) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest) (*runtime.ContainerStatusResponse, error) {
	c, err := s.findContainer(r.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("status of container: %w", err)
	}
	if !c.listed() {
		return nil, fmt.Errorf("status of container %s: it is being created: %w", c.ID, errdefs.ErrNotFound)
	}
	answer := &runtime.ContainerStatusResponse{Status: c.status()}
	if r.GetVerbose() {
		if answer.Info, err = s.containerInfo(c); err != nil {
			return nil, fmt.Errorf("status of container %s: %w", c.ID, err)
		}
	}
	return answer, nil
}
