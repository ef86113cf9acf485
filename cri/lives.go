// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"maps"
	"slices"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// stage is how far a container or sandbox has come, as events tell it. It only grows.
type stage int

const (
	unseen stage = iota // it does not exist, or its create has not succeeded yet
	created
	started // of a sandbox: ready
	stopped
)

// lives follows the records of pods and containers, so that each event carries the
// statuses of the moment it tells of, and not those of a later one: kubelet's evented
// PLEG takes them for the state at the time created_at.
type lives struct {
	pods       map[string]podLife
	containers map[string]containerLife
	members    map[string]map[string]bool // containers by pod
}

type podLife struct {
	pod
	stage stage
}

type containerLife struct {
	container
	stage stage
}

// newLives begins with what there is, of which no events are told.
func newLives(views []*engine.View) *lives {
	l := &lives{pods: map[string]podLife{}, containers: map[string]containerLife{}, members: map[string]map[string]bool{}}
	for _, v := range views {
		switch v.Workflow {
		case steps.Sandbox:
			p := newPod(v)
			at := p.stage()
			if at == unseen && v.Phase != engine.Climbing {
				at = stopped
			}
			l.pods[v.ID] = podLife{p, at}
		case steps.Container:
			c := newContainer(v)
			at := c.stage()
			if c.exit != nil { // also an exit that nobody saw
				at = stopped
			}
			l.put(containerLife{c, at})
		}
	}
	return l
}

// follow takes a change in and gives the events that it is told by.
func (l *lives) follow(change engine.Event) []*runtime.ContainerEventResponse {
	switch change.Workflow {
	case steps.Sandbox:
		return l.followPod(change)
	case steps.Container:
		return l.followContainer(change)
	}
	return nil
}

func (l *lives) followPod(change engine.Event) []*runtime.ContainerEventResponse {
	old := l.pods[change.ID]
	if change.View == nil {
		// The status of a sandbox that is gone is its last one: without any, kubelet
		// could not tell which of its pods it was.
		events := l.tell(change, change.ID, passed(old.stage, unseen))
		delete(l.pods, change.ID)
		return events
	}
	p := newPod(change.View)
	next := p.stage()
	if old.stage >= started && next != started {
		next = stopped
	}
	next = max(old.stage, next)
	l.pods[change.ID] = podLife{p, next}
	return l.tell(change, change.ID, passed(old.stage, next))
}

func (l *lives) followContainer(change engine.Event) []*runtime.ContainerEventResponse {
	old := l.containers[change.ID]
	if change.View == nil {
		l.drop(old)
		return l.tell(change, old.request.PodID, passed(old.stage, unseen))
	}
	c := newContainer(change.View)
	next := max(old.stage, c.stage())
	l.put(containerLife{c, next})
	return l.tell(change, c.request.PodID, passed(old.stage, next))
}

// passed names what lies between two stages; back at unseen it is deleted. A
// container whose start failed stops without having been started.
func passed(from, to stage) []runtime.ContainerEventType {
	var types []runtime.ContainerEventType
	if to == unseen {
		if from != unseen {
			types = append(types, runtime.ContainerEventType_CONTAINER_DELETED_EVENT)
		}
		return types
	}
	if from < created && to >= created {
		types = append(types, runtime.ContainerEventType_CONTAINER_CREATED_EVENT)
	}
	if from < started && to == started {
		types = append(types, runtime.ContainerEventType_CONTAINER_STARTED_EVENT)
	}
	if from < stopped && to == stopped {
		types = append(types, runtime.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return types
}

// stage of a sandbox is told by its state, which knows no "created".
func (p pod) stage() stage {
	if p.state() == runtime.PodSandboxState_SANDBOX_READY {
		return started
	}
	return unseen
}

// stage of a container: it is stopped when its exit is in the record. That its task is
// gone without one is no event: the exit follows.
func (c container) stage() stage {
	switch {
	case c.Damaged:
		return unseen
	case exited(c.View) || startFailed(c.View):
		return stopped
	case c.Station == steps.Running:
		return started
	case c.Station == steps.Created && (c.Phase == engine.Standing || c.Phase == engine.Climbing):
		return created
	default:
		return unseen
	}
}

func (l *lives) put(c containerLife) {
	l.containers[c.ID] = c
	if l.members[c.request.PodID] == nil {
		l.members[c.request.PodID] = map[string]bool{}
	}
	l.members[c.request.PodID][c.ID] = true
}

func (l *lives) drop(c containerLife) {
	if c.View == nil {
		return
	}
	delete(l.containers, c.ID)
	delete(l.members[c.request.PodID], c.ID)
	if len(l.members[c.request.PodID]) == 0 {
		delete(l.members, c.request.PodID)
	}
}

func (l *lives) tell(change engine.Event, podID string, types []runtime.ContainerEventType) []*runtime.ContainerEventResponse {
	if len(types) == 0 {
		return nil
	}
	var pod *runtime.PodSandboxStatus
	if p := l.pods[podID]; p.View != nil {
		pod = p.status()
	}
	var members []*runtime.ContainerStatus
	for id := range maps.Keys(l.members[podID]) {
		if c := l.containers[id]; c.stage != unseen {
			members = append(members, c.status())
		}
	}
	slices.SortFunc(members, func(a, b *runtime.ContainerStatus) int {
		return cmp.Or(cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()), cmp.Compare(a.GetId(), b.GetId()))
	})
	var events []*runtime.ContainerEventResponse
	for _, t := range types {
		events = append(events, &runtime.ContainerEventResponse{
			ContainerId: change.ID, ContainerEventType: t, CreatedAt: change.At.UnixNano(),
			PodSandboxStatus: pod, ContainersStatuses: members,
		})
	}
	return events
}
