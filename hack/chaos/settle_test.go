// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// prepare makes what a step is about, as far as it is missing. It says whether the step makes sense.
func (l *life) prepare(s story.Step) (bool, error) {
	switch s.Op {
	case story.RunPodSandbox:
		if l.pod != nil && (l.pod.stopped || l.pod.lost) {
			return true, l.renew()
		}
		return true, nil
	case story.CreateContainer:
		return true, l.needPod()
	case story.StartContainer:
		if err := l.needPod(); err != nil {
			return false, err
		}
		return true, l.needContainer(s.Slot, nil)
	case story.StopContainer, story.RemoveContainer, story.ExecSync:
		if s.Slot < len(l.slots) && l.slots[s.Slot] != nil && l.slots[s.Slot].id != "" {
			return true, nil
		}
	case story.StopPodSandbox:
		if l.pod != nil {
			return true, nil
		}
	case story.RemovePodSandbox:
		for len(l.old) > 0 {
			if err := l.bury(l.old[0].id); err != nil {
				return false, err
			}
			l.buried(l.old[0])
			l.old = l.old[1:]
		}
		if l.pod != nil {
			return true, nil
		}
	}
	l.tell("nothing to do")
	return false, nil
}

// settle goes on as kubelet does after a call that was not answered, or by an error: it looks, and
// makes the call again, until it has what it wants.
func (l *life) settle(m meeting) error {
	switch m.step.Op {
	case story.RunPodSandbox:
		return l.settlePod(&m)
	case story.CreateContainer:
		return l.needContainer(m.step.Slot, &m)
	case story.StartContainer:
		return l.settleStart(m.step.Slot, &m)
	default:
		return l.again(m.step, m.about)
	}
}

// again makes a call to stop or remove something again.
func (l *life) again(s story.Step, about *container) error {
	if (s.Op == story.StopPodSandbox || s.Op == story.RemovePodSandbox) && l.pod == nil {
		return nil
	}
	r := l.request(s, about)
	err := l.sure(r.name, func(ctx context.Context) error {
		_, err := r.do(ctx)
		return err
	})
	if err == nil {
		l.tell("then ok")
		l.arrived(s, about, outcome{})
	}
	return err
}

// undisturbed says that a call failed in an ordinary way: its caller has waited for the answer, so
// nothing may be left of it.
func (m *meeting) undisturbed() bool {
	if m == nil || m.rough() || m.step.How != story.Once {
		return false
	}
	for _, f := range m.step.Faults {
		if !strings.Contains(f.Point, "/do:") || strings.HasPrefix(f.Kind, "kill") || f.Program != "" {
			return false
		}
	}
	return true
}

// settlePod runs the pod that is to be there.
func (l *life) settlePod(m *meeting) error {
	look := m == nil || !m.step.Blind || m.rough()
	for range maxTries {
		if look {
			done, err := l.takeUp(m)
			if err != nil || done {
				return err
			}
		}
		r := l.request(story.Step{Op: story.RunPodSandbox}, nil)
		id := ""
		rough, err := l.call(l.ctx, r.name, func(ctx context.Context) error {
			var err error
			id, err = r.do(ctx)
			return err
		})
		switch {
		case err == nil:
			l.tell("then ok")
			l.ran(id)
			return nil
		case isCode(err, codes.AlreadyExists) && !look && !m.undisturbed():
			// The answer to the first call came when nobody listened any more, or its rollback is stuck.
			l.n.tally.add("happens", "a name that is taken, since an answer was not heard or a rollback is stuck")
		case !rough:
			return named(r.name+", repeated", err)
		}
		look = true
	}
	return errors.New("the pod cannot be run")
}

// takeUp looks for the pod, and uses it if it is ready; if it is not, it must go.
func (l *life) takeUp(m *meeting) (done bool, err error) {
	found, err := l.find(l.next)
	switch {
	case err != nil || found == nil:
		return false, err
	case m.undisturbed():
		return false, fmt.Errorf("the call has failed, and left pod %s, %s", found.GetId(), found.GetState())
	case found.GetState() == cri.PodSandboxState_SANDBOX_READY:
		l.tell("then found")
		l.n.tally.add("happens", "a pod found after a call without an answer")
		l.ran(found.GetId())
		return true, nil
	}
	l.n.tally.add("happens", "a half-made pod removed")
	l.gone.pods = append(l.gone.pods, found.GetId())
	l.next++
	return false, l.bury(found.GetId())
}

// find looks for a pod as kubelet does.
func (l *life) find(attempt uint32) (found *cri.PodSandbox, err error) {
	pods, err := l.pods()
	for _, p := range pods {
		if p.GetMetadata().GetAttempt() != attempt {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("two pods have the same name: %v and %v", p, found)
		}
		found = p
	}
	return found, err
}

func (l *life) pods() (items []*cri.PodSandbox, err error) {
	err = l.sure("ListPodSandbox", func(ctx context.Context) error {
		a, err := l.n.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{
			Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"life": l.name}},
		})
		items = a.GetItems()
		return err
	})
	return items, err
}

// bury stops and removes a pod.
func (l *life) bury(id string) error {
	err := l.sure("StopPodSandbox", func(ctx context.Context) error {
		_, err := l.n.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
	if err != nil {
		return err
	}
	return l.sure("RemovePodSandbox", func(ctx context.Context) error {
		_, err := l.n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

// needPod makes sure of a pod that is ready.
func (l *life) needPod() error {
	switch {
	case l.pod == nil:
		return l.settlePod(nil)
	case l.pod.stopped || l.pod.lost:
		return l.renew()
	}
	return nil
}

// renew stops the pod, as far as there is one, and runs another in its place. The old one stays
// for a while in every other life.
func (l *life) renew() error {
	if p := l.pod; p != nil {
		l.asked(story.Step{Op: story.StopPodSandbox})
		if err := l.again(story.Step{Op: story.StopPodSandbox}, nil); err != nil {
			return err
		}
		l.pod = nil
		clear(l.slots)
		if l.story.Index%2 == 0 {
			l.old = append(l.old, p)
		} else {
			if err := l.bury(p.id); err != nil {
				return err
			}
			l.buried(p)
		}
	}
	return l.settlePod(nil)
}

// needContainer makes sure of a container in a slot, in a pod that is ready.
func (l *life) needContainer(slot int, m *meeting) error {
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
		s, err := l.status(c)
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
		default: // on its way down
			time.Sleep(20 * time.Millisecond)
		}
	}
	return errors.New("the container cannot be started")
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
