// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"sync"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// pod is a pod that plugins have been told of. It is one from before its
// RunPodSandbox is told until after its RemovePodSandbox.
type pod struct {
	brief            *api.PodSandbox // when its record is gone
	stopped, removed once
}

// container is one from before its CreateContainer until after its RemoveContainer.
type container struct {
	pod              string
	brief            *api.Container
	started          atomic.Bool // StartContainer was told, or begun to be
	stopped, removed once
}

// once is an event that is told once. Whoever comes second waits until it has
// been told, so that what follows it is told after it. done is set under the
// plugin-sync block that it was told under.
type once struct {
	sync.Once

	done atomic.Bool
}

// finish notes an event of a former daemon's time.
func (o *once) finish() { o.Do(func() { o.done.Store(true) }) }

func briefPod(p *api.PodSandbox, id string) *api.PodSandbox {
	if p == nil {
		return &api.PodSandbox{Id: id}
	}
	return p // it is small
}

// briefContainer leaves out what is read from the bundle.
func briefContainer(c *api.Container, id, pod string) *api.Container {
	if c == nil {
		return &api.Container{Id: id, PodSandboxId: pod}
	}
	return &api.Container{
		Id: id, PodSandboxId: pod, Name: c.GetName(), State: c.GetState(),
		Labels: c.GetLabels(), CreatedAt: c.GetCreatedAt(), Image: c.GetImage(),
	}
}

func (m *Manager) podEntry(id string) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[id]
}

func (m *Manager) containerEntry(id string) *container {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.containers[id]
}

// containersOf lists the containers of a pod.
func (m *Manager) containersOf(pod string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for id, c := range m.containers {
		if c.pod == pod {
			ids = append(ids, id)
		}
	}
	return ids
}

// living lists what a plugin that joins now has to know: the pods that have not
// been stopped, with all their containers.
func (m *Manager) living() (pods []string, containers map[string]*container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	containers = map[string]*container{}
	for id, p := range m.pods {
		if !p.stopped.done.Load() {
			pods = append(pods, id)
		}
	}
	for id, c := range m.containers {
		if p := m.pods[c.pod]; p != nil && !p.stopped.done.Load() {
			containers[id] = c
		}
	}
	return pods, containers
}

// podOf gives what is known of a pod: its record, or what is left of it.
func (s *session) podOf(id string, p *pod) *api.PodSandbox {
	if now := s.runtime.Pod(id); now != nil {
		return now
	}
	if p != nil {
		return p.brief
	}
	return &api.PodSandbox{Id: id}
}

// containerOf gives what is known of a container: its record and bundle, or
// what is left of it.
func (s *session) containerOf(id string, c *container) *api.Container {
	now := s.runtime.Container(id)
	if now == nil {
		now, _ = proto.Clone(c.brief).(*api.Container)
	}
	if c.stopped.done.Load() {
		now.State = api.ContainerState_CONTAINER_STOPPED
	}
	return now
}
