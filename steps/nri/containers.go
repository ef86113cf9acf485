// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
)

// CreateContainer tells CreateContainer and gives the changes that plugins want
// in the container's OCI spec, or nil. What they want for other containers has
// been done. An error is a plugin's refusal, or a conflict of two;
// RemoveContainer must follow it as it does a success.
func (m *Manager) CreateContainer(ctx context.Context, id, podID string) (*api.ContainerAdjustment, error) {
	var answer *api.CreateContainerResponse
	err := m.tell(ctx, func(ctx context.Context, s *session) error {
		full := &api.Container{Id: id, PodSandboxId: podID}
		if !m.nobody() { // it takes reading the bundle
			full = cmp.Or(s.runtime.Container(id), full)
		}
		m.mu.Lock()
		m.containers[id] = &container{pod: podID, brief: briefContainer(full, id, podID)}
		m.mu.Unlock()
		if m.nobody() {
			return nil
		}
		env, devices := full.GetEnv(), full.GetLinux().GetDevices()
		request := &api.CreateContainerRequest{Pod: s.podOf(podID, m.podEntry(podID)), Container: full}
		var err error
		if answer, err = s.adaptation.CreateContainer(ctx, request); err != nil {
			return fmt.Errorf("NRI plugins refused container %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
		}
		removeEnv(answer.GetAdjust(), env, full.GetEnv())
		removeDevices(answer.GetAdjust(), devices, full.GetLinux().GetDevices())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := m.applyAll(ctx, answer.GetUpdate()); err != nil {
		return nil, err
	}
	return answer.GetAdjust(), nil
}

// removeEnv asks for the removal of variables that plugins have removed: the
// adaptation takes them out of what the next plugin sees, and does not say so.
func removeEnv(a *api.ContainerAdjustment, had, have []string) {
	left := map[string]bool{}
	for _, e := range have {
		name, _, _ := strings.Cut(e, "=")
		left[name] = true
	}
	for _, e := range had {
		if name, _, _ := strings.Cut(e, "="); !left[name] && a != nil {
			a.Env = append(a.Env, &api.KeyValue{Key: api.MarkForRemoval(name)})
		}
	}
}

// removeDevices does the same for devices.
func removeDevices(a *api.ContainerAdjustment, had, have []*api.LinuxDevice) {
	left := map[string]bool{}
	for _, d := range have {
		left[d.GetPath()] = true
	}
	for _, d := range had {
		if a.GetLinux() != nil && !left[d.GetPath()] {
			a.Linux.Devices = append(a.Linux.Devices, &api.LinuxDevice{Path: api.MarkForRemoval(d.GetPath())})
		}
	}
}

// CreatedContainer tells PostCreateContainer.
func (m *Manager) CreatedContainer(ctx context.Context, id string) {
	m.containerEvent(ctx, "PostCreateContainer", id, func(ctx context.Context, s *session, p *api.PodSandbox, c *api.Container) error {
		return s.adaptation.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: p, Container: c})
	}, nothing)
}

// StartContainer tells StartContainer. An error is a plugin's refusal;
// StopContainer must follow it as it does a success.
func (m *Manager) StartContainer(ctx context.Context, id string) error {
	return m.tell(ctx, func(ctx context.Context, s *session) error {
		c := m.containerEntry(id)
		if c == nil {
			return nil
		}
		c.started.Store(true)
		if m.nobody() {
			return nil
		}
		err := s.adaptation.StartContainer(ctx, &api.StartContainerRequest{
			Pod: s.podOf(c.pod, m.podEntry(c.pod)), Container: s.containerOf(id, c),
		})
		if err != nil {
			return fmt.Errorf("an NRI plugin refused to start container %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
}

// StartedContainer tells PostStartContainer.
func (m *Manager) StartedContainer(ctx context.Context, id string) {
	m.containerEvent(ctx, "PostStartContainer", id, func(ctx context.Context, s *session, p *api.PodSandbox, c *api.Container) error {
		return s.adaptation.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: p, Container: c})
	}, nothing)
}

// UpdateContainer tells UpdateContainer and gives the limits as plugins want
// them, or nil to leave them as they are. What they want for other containers
// has been done. An error is a plugin's refusal.
func (m *Manager) UpdateContainer(ctx context.Context, id string, r *api.LinuxResources) (*api.LinuxResources, error) {
	var answer *api.UpdateContainerResponse
	err := m.tell(ctx, func(ctx context.Context, s *session) error {
		c := m.containerEntry(id)
		if c == nil || m.nobody() {
			return nil
		}
		var err error
		answer, err = s.adaptation.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod: s.podOf(c.pod, m.podEntry(c.pod)), Container: s.containerOf(id, c), LinuxResources: r,
		})
		if err != nil {
			return fmt.Errorf("NRI plugins refused the update of container %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var own *api.LinuxResources
	var others []*api.ContainerUpdate
	for _, u := range answer.GetUpdate() {
		switch {
		case u.GetContainerId() == id:
			own = u.GetLinux().GetResources()
		case u != nil:
			others = append(others, u)
		}
	}
	return own, m.applyAll(ctx, others)
}

// UpdatedContainer tells PostUpdateContainer.
func (m *Manager) UpdatedContainer(ctx context.Context, id string) {
	m.containerEvent(ctx, "PostUpdateContainer", id, func(ctx context.Context, s *session, p *api.PodSandbox, c *api.Container) error {
		return s.adaptation.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: p, Container: c})
	}, nothing)
}

// StopContainer tells StopContainer once, if StartContainer has been told.
// Plugins cannot refuse it.
func (m *Manager) StopContainer(ctx context.Context, id string) {
	if m == nil {
		return
	}
	c := m.containerEntry(id)
	if c == nil || !c.started.Load() {
		return
	}
	c.stopped.Do(func() {
		var answer *api.StopContainerResponse
		m.containerEvent(ctx, "StopContainer", id, func(ctx context.Context, s *session, p *api.PodSandbox, about *api.Container) (err error) {
			about.State = api.ContainerState_CONTAINER_STOPPED
			answer, err = s.adaptation.StopContainer(ctx, &api.StopContainerRequest{Pod: p, Container: about})
			return err
		}, func() { c.stopped.done.Store(true) })
		m.applyBestEffort(ctx, "StopContainer", answer.GetUpdate())
	})
}

// RemoveContainer tells RemoveContainer once, after StopContainer.
func (m *Manager) RemoveContainer(ctx context.Context, id string) {
	if m == nil {
		return
	}
	c := m.containerEntry(id)
	if c == nil {
		return
	}
	m.StopContainer(ctx, id)
	c.removed.Do(func() {
		m.containerEvent(ctx, "RemoveContainer", id, func(ctx context.Context, s *session, p *api.PodSandbox, about *api.Container) error {
			return s.adaptation.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: p, Container: about})
		}, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.containers, id)
		})
	})
}

// aboutContainer tells one event of a container.
type aboutContainer func(context.Context, *session, *api.PodSandbox, *api.Container) error

// containerEvent informs of an event of a container that has been told of.
func (m *Manager) containerEvent(ctx context.Context, event, id string, f aboutContainer, note func()) {
	if m == nil {
		return
	}
	m.inform(ctx, event, id, func(ctx context.Context, s *session) error {
		c := m.containerEntry(id)
		if c == nil {
			return nil
		}
		return f(ctx, s, s.podOf(c.pod, m.podEntry(c.pod)), s.containerOf(id, c))
	}, note)
}
