// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	default: // see step
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
