// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

const (
	// impatient is the deadline of a caller whose fault hangs.
	impatient = 400 * time.Millisecond
	// crowd is how many make the same call at the same time.
	crowd = 3
)

// request is a call that is ready to be made, by several at once if need be. It gives the ID of
// what it has made, or the output of what it has run.
type request struct {
	name string
	do   func(context.Context) (string, error)
}

// outcome is what came of one.
type outcome struct {
	got   string
	err   error
	rough bool
}

func (o outcome) ok() bool { return o.err == nil }

// request makes the call of a step about a container, or the pod, ready.
func (l *life) request(s story.Step, c *container) request {
	r := request{name: string(s.Op)}
	p, client := l.pod, l.n.client
	switch s.Op {
	case story.RunPodSandbox:
		config := l.podConfig(l.attempt())
		r.do = func(ctx context.Context) (string, error) {
			a, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: l.story.Handler})
			return a.GetPodSandboxId(), err
		}
	case story.CreateContainer:
		r.do = l.creation(p, l.slotName(s.Slot), c.attempt, c.plan)
	case story.StartContainer:
		r.do = func(ctx context.Context) (string, error) {
			_, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.id})
			return "", err
		}
	case story.StopContainer:
		r.do = func(ctx context.Context) (string, error) {
			_, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: c.id, Timeout: s.Grace})
			return "", err
		}
	case story.RemoveContainer:
		r.do = func(ctx context.Context) (string, error) {
			_, err := client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
			return "", err
		}
	case story.StopPodSandbox:
		r.do = func(ctx context.Context) (string, error) {
			_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
			return "", err
		}
	case story.RemovePodSandbox:
		r.do = func(ctx context.Context) (string, error) {
			_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
			return "", err
		}
	case story.ExecSync:
		r.do = l.command(c.id, s.Code)
	default:
		r.do = func(ctx context.Context) (string, error) { return "", l.aside(ctx, s) }
	}
	return r
}

func (l *life) creation(p *pod, name string, attempt uint32, plan story.Container) func(context.Context) (string, error) {
	r := &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: l.podConfig(p.attempt), Config: l.containerConfig(name, attempt, plan),
	}
	return func(ctx context.Context) (string, error) {
		a, err := l.n.client.CreateContainer(ctx, r)
		return a.GetContainerId(), err
	}
}

// command runs something in a container; what it is told is the exit code and the output.
func (l *life) command(id string, code int32) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		a, err := l.n.client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", fmt.Sprintf("echo from %s; exit %d", l.name, code)}})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d %s", a.GetExitCode(), a.GetStdout()), nil
	}
}

// aside makes calls that are made beside another, and say nothing of its subject.
func (l *life) aside(ctx context.Context, s story.Step) error {
	if s.Op == story.Unknown {
		return l.unknown(ctx)
	}
	_, err := l.n.client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err == nil {
		_, err = l.n.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	}
	if err == nil {
		_, err = l.n.client.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
	}
	return err
}

// make makes a call in the way of a step, with its faults, and gives what came of it, and what came
// of the call made beside it.
func (l *life) make(s story.Step, r request, beside *request) (all []outcome, other outcome) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	one := func(ctx context.Context, r request) (o outcome) {
		o.rough, o.err = l.call(ctx, r.name, func(ctx context.Context) error {
			var err error
			o.got, err = r.do(ctx)
			return err
		})
		return o
	}
	var group sync.WaitGroup
	defer group.Wait()
	switch s.How {
	case story.Deadline:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, impatient)
		defer stop()
	case story.Cancelled:
		group.Go(func() { l.onceUsed(ctx, s, cancel) })
	case story.Timed:
		timer := time.AfterFunc(time.Duration(s.Millis)*time.Millisecond, cancel)
		defer timer.Stop()
	case story.Killed:
		group.Go(func() {
			time.Sleep(time.Duration(s.Millis) * time.Millisecond)
			_ = l.n.end(syscall.SIGKILL) // a daemon that does not come back is told of by the next call
		})
	case story.Raced:
		group.Go(func() {
			time.Sleep(time.Duration(s.Millis) * time.Millisecond)
			other = one(ctx, *beside)
		})
	case story.Together:
		all = make([]outcome, crowd)
		for i := range all {
			group.Go(func() { all[i] = one(ctx, r) })
		}
		group.Wait()
		return all, other
	case story.Twice:
		first := one(ctx, r)
		return []outcome{first, one(ctx, r)}, other
	case story.Once:
	}
	all = []outcome{one(ctx, r)}
	if s.How == story.Cancelled {
		cancel()
	}
	group.Wait()
	return all, other
}

// onceUsed cancels a call when its fault has been reached, or the call is over.
func (l *life) onceUsed(ctx context.Context, s story.Step, cancel context.CancelFunc) {
	before, err := l.used(s)
	for err == nil && ctx.Err() == nil {
		var now int
		if now, err = l.used(s); now > before {
			cancel()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// behind waits a while for the faults of a stop: it is answered when the process has ended, and
// the task is deleted behind.
func (l *life) behind(s story.Step, before int) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if now, err := l.used(s); err != nil || now > before {
			return
		}
	}
}

func (l *life) used(s story.Step) (int, error) {
	return l.n.faults.used(l.name, s.Faults, l.subject(s))
}

// subject is the ID of what a step is about, as far as it has one.
func (l *life) subject(s story.Step) string {
	switch s.Op {
	case story.StartContainer, story.StopContainer, story.RemoveContainer, story.ExecSync:
		return l.container(s.Slot).id
	default:
		if l.pod == nil {
			return ""
		}
		return l.pod.id
	}
}

// trouble makes the call of a step, in whatever way, and goes on as kubelet does until its goal is
// reached.
func (l *life) trouble(s story.Step) error {
	if ok, err := l.prepare(s); err != nil || !ok {
		return err
	}
	want, about := l.expected(s), l.container(s.Slot)
	r, beside, with := l.request(s, about), (*request)(nil), l.with(s)
	l.asked(s)
	if with != nil {
		x := l.request(*with, l.container(with.Slot))
		beside = &x
		l.asked(*with)
	}
	subject := l.subject(s)
	before, err := l.n.faults.used(l.name, s.Faults, subject)
	if err != nil {
		return err
	}
	if err := l.n.faults.set(l.name, s.Faults, subject); err != nil {
		return err
	}
	all, other := l.make(s, r, beside)
	if s.Op == story.StopContainer && len(s.Faults) > 0 {
		l.behind(s, before)
	}
	after, err := l.n.faults.used(l.name, s.Faults, subject)
	if err != nil {
		return err
	}
	if err := l.n.faults.clear(l.name, subject); err != nil {
		return err
	}
	met := meeting{step: s, about: about, want: want, all: all, used: after - before}
	if with != nil {
		met.with, met.other = with, &other
	}
	return l.judge(met)
}

// with is the step of the call that is made beside another.
func (l *life) with(s story.Step) *story.Step {
	if s.How != story.Raced {
		return nil
	}
	with := story.Step{Op: s.With, Slot: s.Slot}
	switch s.With {
	case story.CreateContainer: // another one
		l.extra++
		with.Slot = -l.extra
	case story.StopContainer, story.RemoveContainer, story.ExecSync, story.StartContainer:
		if l.container(s.Slot).id == "" {
			with.Op = story.Ask
		}
	case story.StopPodSandbox, story.RemovePodSandbox:
		if l.pod == nil {
			with.Op = story.Ask
		}
	default: // of no subject
	}
	return &with
}

// container is the one of a slot; a slot that is empty is given what is wanted there next.
func (l *life) container(slot int) *container {
	plan := story.Container{Exits: story.Never}
	if slot < 0 {
		return &container{slot: slot, name: l.slotName(slot), plan: plan, codes: map[int32]bool{}}
	}
	if slot >= len(l.slots) {
		return &container{slot: slot}
	}
	if l.slots[slot] == nil {
		l.slots[slot] = &container{
			slot: slot, name: l.slotName(slot), attempt: l.attempts[slot], plan: l.story.Containers[slot], codes: map[int32]bool{},
		}
		l.attempts[slot]++
	}
	return l.slots[slot]
}

// attempt is that of the pod which is there, or of the next one.
func (l *life) attempt() uint32 {
	if l.pod != nil {
		return l.pod.attempt
	}
	return l.next
}

// meeting is how a call went.
type meeting struct {
	step  story.Step
	about *container // the one of the step's slot, before the call
	want  []codes.Code
	all   []outcome
	used  int // how often its faults have happened
	with  *story.Step
	other *outcome
}

// quiet says whether nothing was done to a call.
func (m meeting) quiet() bool {
	return m.used == 0 && !m.rough() && (m.step.How == story.Once || m.step.How == story.Twice || m.step.How == story.Together) &&
		!slices.ContainsFunc(m.step.Faults, func(f story.Fault) bool { return f.Program != "" })
}

func (m meeting) rough() bool {
	return slices.ContainsFunc(m.all, func(o outcome) bool { return o.rough }) || m.other != nil && m.other.rough
}

// first is the outcome that counts: of one that succeeded, if there is one.
func (m meeting) first() outcome {
	for _, o := range m.all {
		if o.ok() {
			return o
		}
	}
	return m.all[0]
}

// answers are the codes of all outcomes in an order that does not depend on chance.
func (m meeting) answers() string {
	var out []string
	for _, o := range m.all {
		out = append(out, code(o.err))
	}
	if m.step.How == story.Together {
		slices.Sort(out)
	}
	return strings.Join(out, " ")
}

// isCode says whether a call was answered by one of some codes.
func isCode(err error, want ...codes.Code) bool { return slices.Contains(want, status.Code(err)) }
