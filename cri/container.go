// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// container is a container as its record tells it. Its states follow from the
// record alone:
//
//	climbing create ─→ (not listed)
//	created, no exit ─→ CREATED ─start─→ running, no exit ─→ RUNNING
//	any, exit known  ─→ EXITED
//	damaged          ─→ UNKNOWN
type container struct {
	*engine.View
	request steps.Ctr
	config  *runtime.ContainerConfig
	exit    *steps.Exit
}

func newContainer(v *engine.View) container {
	c := container{View: v, config: &runtime.ContainerConfig{}}
	request, ok, err := steps.ContainerRequest.Get(v)
	if err == nil && ok && request.Config.M != nil {
		c.request, c.config = request, request.Config.M
	}
	if c.request.PodID == "" {
		c.request.PodID = podIn(v.Name)
	}
	if c.config.GetMetadata() == nil { // a damaged record is listed under its ID
		c.config.Metadata = &runtime.ContainerMetadata{Name: v.ID}
	}
	if exit, ok, err := steps.ContainerExit.Get(v); err == nil && ok {
		c.exit = &exit
	} else if startFailed(v) {
		c.exit = &steps.Exit{Code: startErrorCode, Reason: startError, Message: v.Error, Finished: v.Changed}
	} else if task, ran, err := steps.ContainerTask.Get(v); err == nil && ran && v.Station == steps.Created && v.Phase == engine.Standing {
		exit := unknownExit(task) // taken down, and a crash lost how it ended
		exit.Finished = v.Changed
		c.exit = &exit
	}
	return c
}

// startFailed tells that a start was begun and has not come to its end: it failed, or the
// daemon died in it. Nobody knows how far the process has come, so it must not be run again.
func startFailed(v *engine.View) bool {
	return v.Station == steps.Created && v.Phase == engine.Standing && v.Error != ""
}

// findContainer resolves a container ID or a unique prefix of one.
func (s *Server) findContainer(id string) (container, error) {
	v, err := find(s.engine, steps.Container, "container", id)
	if err != nil {
		return container{}, err
	}
	return newContainer(v), nil
}

// containersOf lists the containers of a pod, also those being made, and those of which
// nothing but their bundle tells whose they are.
func (s *Server) containersOf(podID string) []container {
	var found []container
	for _, v := range s.engine.List(steps.Container) {
		c := newContainer(v)
		if v.Damaged && c.request.PodID == "" {
			c.request.PodID = spec.PodOf(s.config.ContainerDir(v.ID))
		}
		if c.request.PodID == podID {
			found = append(found, c)
		}
	}
	return found
}

// listed tells whether clients see the container: not before its create succeeded.
func (c container) listed() bool {
	return c.Phase != engine.Climbing || c.Station != steps.Ground
}

func (c container) state() runtime.ContainerState {
	switch {
	case c.Damaged:
		return runtime.ContainerState_CONTAINER_UNKNOWN
	case c.exit != nil:
		return runtime.ContainerState_CONTAINER_EXITED
	case c.Station == steps.Running:
		return runtime.ContainerState_CONTAINER_RUNNING
	case c.Phase == engine.Stuck || c.Phase == engine.Descending:
		return runtime.ContainerState_CONTAINER_UNKNOWN
	default:
		return runtime.ContainerState_CONTAINER_CREATED
	}
}

// atRest tells that no process of the container runs or can come to run: it has
// ended, or it was created and is not being started. One that is on its way down
// may still have its process.
func (c container) atRest() bool {
	return c.exit != nil || (c.Station != steps.Running && c.Phase == engine.Standing)
}

// running refuses what needs a running container.
func (c container) running() error {
	if c.state() != runtime.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("container %s is %s, not running: %w", c.ID, stateName(c.state()), errdefs.ErrFailedPrecondition)
	}
	return nil
}

func stateName(s runtime.ContainerState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "CONTAINER_"))
}

// pid is the init process while the container runs, else 0.
func (c container) pid() int {
	if c.exit != nil || c.Station != steps.Running {
		return 0
	}
	task, _, err := steps.ContainerTask.Get(c.View)
	if err != nil {
		return 0
	}
	return task.PID
}

// image is what clients call the image: the words the user gave where known.
func (c container) image() *runtime.ImageSpec {
	spec := c.config.GetImage()
	name := spec.GetUserSpecifiedImage()
	if name == "" {
		name = spec.GetImage()
	}
	return &runtime.ImageSpec{
		Image: name, Annotations: spec.GetAnnotations(),
		UserSpecifiedImage: spec.GetUserSpecifiedImage(), RuntimeHandler: spec.GetRuntimeHandler(),
	}
}

func (c container) created() int64 {
	if !c.request.Created.IsZero() {
		return c.request.Created.UnixNano()
	}
	return c.Created.UnixNano()
}

// summary is the entry of ListContainers.
func (c container) summary() *runtime.Container {
	return &runtime.Container{
		Id: c.ID, PodSandboxId: c.request.PodID, Metadata: c.config.GetMetadata(),
		Image: c.image(), ImageRef: c.request.Image.Ref, ImageId: c.request.Image.ID,
		State: c.state(), CreatedAt: c.created(),
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
	}
}

func (c container) status() *runtime.ContainerStatus {
	status := &runtime.ContainerStatus{
		Id: c.ID, Metadata: c.config.GetMetadata(), State: c.state(), CreatedAt: c.created(),
		Image: c.image(), ImageRef: c.request.Image.Ref, ImageId: c.request.Image.ID,
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.mounts(), LogPath: c.request.LogPath, Resources: c.resources(), User: c.user(),
		StopSignal: spec.SignalOf(c.request.StopSignal),
	}
	if task, ok, err := steps.ContainerTask.Get(c.View); err == nil && ok {
		status.StartedAt = task.Started.UnixNano()
	}
	if c.exit != nil {
		status.ExitCode, status.Reason, status.Message = c.exit.Code, c.exit.Reason, c.exit.Message
		status.FinishedAt = c.exit.Finished.UnixNano()
		status.StartedAt = 0
		if !c.exit.Started.IsZero() {
			// The clock may have been set meanwhile. It is the end that has to be true:
			// kubelet counts from it when the container may be started again.
			status.StartedAt = min(c.exit.Started.UnixNano(), status.FinishedAt)
		}
	}
	if status.State == runtime.ContainerState_CONTAINER_UNKNOWN {
		status.Reason, status.Message = "Unknown", c.Error
	}
	return status
}

// mounts are those of the request, with the images of image mounts as resolved.
func (c container) mounts() []*runtime.Mount {
	resolved := map[string]string{}
	if v, ok, err := steps.ContainerVolumes.Get(c.View); err == nil && ok {
		for _, m := range v.Mounts {
			resolved[m.Target] = m.ImageRef
		}
	}
	mounts := make([]*runtime.Mount, 0, len(c.config.GetMounts()))
	for _, m := range c.config.GetMounts() {
		told := &runtime.Mount{
			ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), Readonly: m.GetReadonly(),
			SelinuxRelabel: m.GetSelinuxRelabel(), Propagation: m.GetPropagation(),
			UidMappings: m.GetUidMappings(), GidMappings: m.GetGidMappings(),
			RecursiveReadOnly: m.GetRecursiveReadOnly(), Image: m.GetImage(), ImageSubPath: m.GetImageSubPath(),
		}
		if ref := resolved[filepath.Clean(m.GetContainerPath())]; ref != "" && m.GetImage() != nil {
			told.Image = &runtime.ImageSpec{
				Image: m.GetImage().GetImage(), Annotations: m.GetImage().GetAnnotations(),
				UserSpecifiedImage: m.GetImage().GetUserSpecifiedImage(),
				RuntimeHandler:     m.GetImage().GetRuntimeHandler(), ImageRef: ref,
			}
			told.Readonly = true
		}
		mounts = append(mounts, told)
	}
	return mounts
}

// resources are those in force: of the last update, else of the request.
func (c container) resources() *runtime.ContainerResources {
	if r, ok, err := steps.ContainerResources.Get(c.View); err == nil && ok {
		return r.M
	}
	if linux := c.config.GetLinux().GetResources(); linux != nil {
		return &runtime.ContainerResources{Linux: linux}
	}
	return nil
}

func (c container) user() *runtime.ContainerUser {
	written, ok, err := steps.ContainerSpec.Get(c.View)
	if err != nil || !ok {
		return nil
	}
	return &runtime.ContainerUser{Linux: &runtime.LinuxContainerUser{
		Uid: written.UID, Gid: written.GID, SupplementalGroups: written.AdditionalGIDs,
	}}
}
