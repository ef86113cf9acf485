// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// needContainer makes sure of a container in a slot, in a pod that is ready.
func (l *life) needContainer(slot int, m *meeting) error {
	if m != nil && l.pod != nil && l.pod.lost { // another pod comes, and this one may have it
		if err := l.adopt(m.step); err != nil {
			return err
		}
	}
	for range maxTries {
		c := l.container(slot)
		if c.id != "" {
			return nil
		}
		if err := l.needPod(); err != nil {
			return err
		}
		c = l.container(slot)
		if done, err := l.takeUpContainer(c, m); err != nil || done {
			return err
		}
		c = l.container(slot)
		do, id := l.creation(l.pod, c.name, c.attempt, c.plan), ""
		rough, err := l.call(l.ctx, "CreateContainer", func(ctx context.Context) error {
			var err error
			id, err = do(ctx)
			return err
		})
		switch {
		case err == nil:
			l.tell("then created")
			l.made(c, id)
			return nil
		case rough || isCode(err, codes.AlreadyExists) && m != nil && m.step.How != story.Once:
		default:
			return named("CreateContainer, repeated", err)
		}
	}
	return errors.New("the container cannot be created")
}

// takeUpContainer looks for a container, and uses it if it is whole; if it is not, it must go.
func (l *life) takeUpContainer(c *container, m *meeting) (done bool, err error) {
	all, err := l.containers()
	if err != nil {
		return false, err
	}
	for _, found := range all {
		if found.GetPodSandboxId() != l.pod.id || found.GetMetadata().GetName() != c.name || found.GetMetadata().GetAttempt() != c.attempt {
			continue
		}
		if m.undisturbed() {
			return false, fmt.Errorf("the call has failed, and left container %s, %s", found.GetId(), found.GetState())
		}
		if found.GetState() == cri.ContainerState_CONTAINER_CREATED {
			l.tell("then found")
			l.n.tally.add("happens", "a container found after a call without an answer")
			l.made(c, found.GetId())
			return true, nil
		}
		l.n.tally.add("happens", "a half-made container removed")
		return false, l.drop(&container{id: found.GetId(), slot: c.slot}, c)
	}
	return false, nil
}

// drop removes a container, and empties the slot of another.
func (l *life) drop(c, slot *container) error {
	err := l.sure("RemoveContainer", func(ctx context.Context) error {
		_, err := l.n.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
		return err
	})
	if err == nil {
		l.removed(c)
		l.empty(slot)
	}
	return err
}

func (l *life) containers() (items []*cri.Container, err error) {
	err = l.sure("ListContainers", func(ctx context.Context) error {
		a, err := l.n.client.ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"life": l.name}},
		})
		items = a.GetContainers()
		return err
	})
	return items, err
}

func (l *life) status(c *container) (s *cri.ContainerStatus, err error) {
	err = l.sure("ContainerStatus", func(ctx context.Context) error {
		a, err := l.n.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id})
		s = a.GetStatus()
		return err
	})
	return s, err
}

// settleStart lets the container of a slot run, or another in its place.
func (l *life) settleStart(slot int, m *meeting) error {
	for range maxTries {
		if err := l.needPod(); err != nil {
			return err
		}
		if err := l.needContainer(slot, nil); err != nil {
			return err
		}
		c := l.container(slot)
		s, err := l.settled(c)
		if err != nil {
			return err
		}
		switch s.GetState() {
		case cri.ContainerState_CONTAINER_RUNNING:
			l.tell("then running")
			c.started = true
			return l.awaitReady(c)
		case cri.ContainerState_CONTAINER_CREATED:
			if done, err := l.startAgain(c, m); err != nil || done {
				return err
			}
		case cri.ContainerState_CONTAINER_EXITED:
			if c.natural(s.GetExitCode()) {
				l.tell("then ended")
				c.started = true
				return nil
			}
			l.n.tally.add("happens", "a container that could not be started replaced")
			if err := l.drop(c, c); err != nil {
				return err
			}
		case cri.ContainerState_CONTAINER_UNKNOWN:
			return fmt.Errorf("container %s stays in an unknown state: %s", c.id, s.GetMessage())
		}
	}
	return errors.New("the container cannot be started")
}

// settled is the status of a container once it is not on its way down.
func (l *life) settled(c *container) (*cri.ContainerStatus, error) {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s, err := l.status(c)
		if err != nil || s.GetState() != cri.ContainerState_CONTAINER_UNKNOWN || time.Now().After(deadline) {
			return s, err
		}
	}
}

func (l *life) startAgain(c *container, m *meeting) (done bool, err error) {
	c.tried = true
	rough, err := l.call(l.ctx, "StartContainer", func(ctx context.Context) error {
		_, err := l.n.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id})
		return err
	})
	switch {
	case err == nil:
		l.tell("then started")
		c.started = true
		return true, l.awaitReady(c)
	case rough:
		c.may(startError, killed, unknown)
		return false, nil
	case m != nil && m.step.How != story.Once && isCode(err, codes.FailedPrecondition):
		return false, nil // the first start is still on its way down, or has ended meanwhile
	case c.pod.lost:
		return false, nil
	}
	return false, named("StartContainer, repeated", err)
}

// natural says whether a code is that of a container that ends by itself.
func (c *container) natural(code int32) bool { return !c.waits() && code == c.plan.Code }

// absorb takes in what has become of a container whose start, or creation, met something else.
func (l *life) absorb(m meeting) error {
	s := m.step
	c := l.container(s.Slot)
	if s.Op == story.CreateContainer {
		switch {
		case c.id != "":
		case m.rough():
			return l.adopt(s)
		default:
			l.empty(c)
		}
		return nil
	}
	if c.id == "" || c.pod == nil {
		return nil
	}
	if c.started && !c.ended {
		return l.awaitReady(c)
	}
	return nil
}

// adopt takes up a container, or notes that there is none, after a creation without an answer.
func (l *life) adopt(s story.Step) error {
	c := l.container(s.Slot)
	all, err := l.containers()
	if err != nil {
		return err
	}
	for _, found := range all {
		if l.pod != nil && found.GetPodSandboxId() == l.pod.id && found.GetMetadata().GetName() == c.name && found.GetMetadata().GetAttempt() == c.attempt {
			l.made(c, found.GetId())
			return nil
		}
	}
	l.empty(c)
	return nil
}

// awaitReady waits until a container that is to wait for its end does so.
func (l *life) awaitReady(c *container) error {
	if !c.waits() {
		return nil
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		lines, err := l.output(c)
		if err == nil && len(lines) > 0 && lines[len(lines)-1] == ready {
			return nil
		}
		if c.pod.lost || c.ended {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("container %s was started and has not written %q: its log has %q (%w)", c.id, ready, lines, orNil(err))
		}
	}
}
