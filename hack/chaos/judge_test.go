// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// judge says whether a call was answered as it must be, and reaches its goal.
func (l *life) judge(m meeting) error {
	s := m.step
	l.count(m)
	switch {
	case m.step.How == story.Timed, m.step.How == story.Killed, m.step.How == story.Raced, m.want == nil:
		l.tell("by chance") // what the call came to by then differs from time to time, and what follows
		l.chance = true
	default:
		l.tell(m.answers())
	}
	if m.quiet() {
		if err := l.asExpected(m); err != nil {
			return err
		}
	} else if err := l.asPossible(m); err != nil {
		return err
	}
	first := m.first()
	if first.ok() {
		l.arrived(s, m.about, first)
	}
	l.shims(m)
	if m.with != nil {
		if err := l.beside(m); err != nil {
			return err
		}
		if s.Op == story.CreateContainer || s.Op == story.StartContainer {
			return l.absorb(m) // its goal may be out of reach
		}
	}
	if first.ok() || slices.Contains(m.want, codes.AlreadyExists) || slices.Contains(m.want, codes.FailedPrecondition) || s.Op == story.ExecSync {
		return l.afterwards(m)
	}
	return l.settle(m)
}

func (l *life) count(m meeting) {
	s := m.step
	if s.How != story.Once {
		l.n.tally.add("ways", string(s.How))
	}
	for _, f := range s.Faults {
		kind, _, _ := strings.Cut(f.Kind, "*")
		switch {
		case f.Program != "":
			l.n.tally.add("faults", f.Program+" "+f.Point+" killed")
		case m.used == 0:
			l.n.tally.add("faults not reached", kind)
		case strings.HasPrefix(kind, "sleep"):
			l.n.tally.add("faults", "slow")
		default:
			l.n.tally.add("faults", kind)
		}
	}
}

// asExpected checks answers to calls that nothing was done to.
func (l *life) asExpected(m meeting) error {
	want := m.want
	oks := 0
	for i, o := range m.all {
		switch {
		case m.want == nil: // whatever
		case m.step.How == story.Together:
			want = slices.Concat(m.want, repeated(m.step.Op))
		case i > 0:
			want = repeated(m.step.Op)
			if !m.all[0].ok() {
				want = m.want
			}
		}
		if want != nil && !isCode(o.err, want...) {
			return fmt.Errorf("the answer is %s (%w), not %v", code(o.err), orNil(o.err), want)
		}
		if o.ok() {
			oks++
		}
	}
	if m.step.How == story.Together && slices.Contains(m.want, codes.OK) && len(m.want) == 1 {
		if oks == 0 || oks > 1 && slices.Contains(repeated(m.step.Op), codes.AlreadyExists) {
			return fmt.Errorf("of %d that ask for the same at once %d succeed: %s", len(m.all), oks, m.answers())
		}
	}
	return nil
}

var errNone = errors.New("no error")

func orNil(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

// repeated is the answer to a call that has succeeded before.
func repeated(op story.Op) []codes.Code {
	switch op {
	case story.RunPodSandbox, story.CreateContainer:
		return []codes.Code{codes.AlreadyExists}
	case story.StartContainer:
		return []codes.Code{codes.FailedPrecondition}
	default:
		return []codes.Code{codes.OK}
	}
}

// asPossible checks answers to calls that something was done to.
func (l *life) asPossible(m meeting) error {
	for _, o := range m.all {
		if o.rough {
			return nil
		}
		if isCode(o.err, codes.Internal) && !slices.ContainsFunc(m.step.Faults, func(f story.Fault) bool { return strings.HasPrefix(f.Kind, "panic") }) {
			return fmt.Errorf("it panics: %w", o.err)
		}
		// Stopping and removing can be done as often, and by as many, as one likes.
		if m.step.How == story.Raced && idempotent(m.step.Op) && !o.ok() {
			return fmt.Errorf("beside %s: %w", m.step.With, o.err)
		}
	}
	if m.step.How != story.Once || m.used == 0 {
		return nil
	}
	for _, f := range m.step.Faults {
		fails := strings.HasPrefix(f.Kind, "fail") || strings.HasPrefix(f.Kind, "late") || strings.HasPrefix(f.Kind, "panic")
		if fails && strings.Contains(f.Point, "/do:") && m.first().ok() {
			return fmt.Errorf("the call succeeds in spite of %s", f)
		}
	}
	return nil
}

func idempotent(op story.Op) bool {
	switch op {
	case story.StopContainer, story.RemoveContainer, story.StopPodSandbox, story.RemovePodSandbox:
		return true
	default:
		return false
	}
}

// beside judges the call that was made beside another.
func (l *life) beside(m meeting) error {
	s, o := *m.with, *m.other
	if o.ok() {
		if s.Op != story.StopContainer || m.step.Op != story.StartContainer { // it may have come first
			about := m.about
			if s.Slot < 0 {
				about = l.container(s.Slot)
			}
			l.arrived(s, about, o)
		}
		return nil
	}
	switch {
	case idempotent(s.Op) && !o.rough:
		return fmt.Errorf("%s beside it: %w", s.Op, o.err)
	case idempotent(s.Op):
		return l.again(s, m.about)
	case !o.rough && isCode(o.err, codes.Internal):
		return fmt.Errorf("%s beside it panics: %w", s.Op, o.err)
	case (s.Op == story.Ask || s.Op == story.Unknown) && !o.rough:
		return fmt.Errorf("%s beside it: %w", s.Op, o.err)
	case s.Op == story.CreateContainer && o.rough:
		return l.adopt(s)
	case s.Op == story.StartContainer:
		return l.absorb(meeting{step: s, all: []outcome{o}})
	}
	return nil
}

// arrived notes what is true since a call has succeeded.
func (l *life) arrived(s story.Step, c *container, o outcome) {
	switch s.Op {
	case story.RunPodSandbox:
		if l.pod == nil {
			l.ran(o.got)
		}
	case story.CreateContainer:
		l.made(c, o.got)
	case story.StartContainer:
		c.started = true
	case story.StopContainer:
		c.down = true
	case story.RemoveContainer:
		l.removed(c)
	case story.StopPodSandbox:
		if l.pod != nil {
			l.wentDown(l.pod)
		}
	case story.RemovePodSandbox:
		if l.pod != nil {
			l.buried(l.pod)
			l.pod = nil
		}
	default: // changes nothing
	}
}

// shims notes that a pod which was being made may have lost its shim.
func (l *life) shims(m meeting) {
	for _, f := range m.step.Faults {
		if strings.HasPrefix(f.Kind, "killshim") && m.used > 0 && l.pod != nil {
			l.pod.lose()
		}
	}
}

// ran notes a pod that was made.
func (l *life) ran(id string) {
	l.pod = &pod{id: id, attempt: l.next}
	l.next++
	clear(l.slots)
}

// made notes a container that was made in the pod.
func (l *life) made(c *container, id string) {
	if c.id != "" || l.pod == nil {
		return
	}
	c.id, c.pod = id, l.pod
	l.pod.containers = append(l.pod.containers, c)
	if l.pod.stopped {
		c.end(false)
	}
	if l.pod.lost {
		l.pod.lose()
	}
}

// removed notes that a container is gone.
func (l *life) removed(c *container) {
	if c.id == "" || c.pod == nil {
		return
	}
	c.pod.containers = slices.DeleteFunc(c.pod.containers, func(o *container) bool { return o == c })
	l.gone.containers = append(l.gone.containers, c.id)
	l.empty(c)
}

// empty frees the slot of a container.
func (l *life) empty(c *container) {
	if c.slot >= 0 && c.slot < len(l.slots) && l.slots[c.slot] == c {
		l.slots[c.slot] = nil
	}
}

func (l *life) wentDown(p *pod) {
	p.down = true
	for _, c := range p.containers {
		c.down = true
		l.empty(c)
	}
}

func (l *life) buried(p *pod) {
	l.wentDown(p)
	for _, c := range p.containers {
		l.gone.containers = append(l.gone.containers, c.id)
	}
	l.gone.pods = append(l.gone.pods, p.id)
}

// afterwards checks what follows from an answer.
func (l *life) afterwards(m meeting) error {
	s, first := m.step, m.first()
	switch s.Op {
	case story.ExecSync:
		want := fmt.Sprintf("%d from %s\n", s.Code, l.name)
		if first.ok() && first.got != want && l.container(s.Slot).runs() {
			return fmt.Errorf("the command's code and output are %q, not %q", first.got, want)
		}
	case story.StartContainer:
		if c := l.container(s.Slot); c.id != "" && first.ok() {
			return l.awaitReady(c)
		}
	default: // see look
	}
	return nil
}
