// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"math/rand/v2"
)

// New gives the life of a number in the story of a seed.
func New(seed uint64, index int) Life {
	g := &generator{r: rand.New(rand.NewPCG(seed, uint64(index))), life: Life{Index: index}} //nolint:gosec // must be the same each time
	g.pod()
	g.beginning()
	for slot := range g.life.Containers {
		g.middle(slot)
	}
	g.end()
	return g.life
}

type generator struct {
	r    *rand.Rand
	life Life
}

// chance is true in so many of a thousand cases.
func (g *generator) chance(perMille int) bool { return g.r.IntN(1000) < perMille }

func pick[T any](g *generator, from ...T) T { return from[g.r.IntN(len(from))] }

func (g *generator) add(s Step) { g.life.Steps = append(g.life.Steps, s) }

// call adds a call, in an ordinary way or not.
func (g *generator) call(s Step) {
	if g.chance(troubled) {
		g.trouble(&s)
	}
	g.add(s)
}

// Chances per mille.
const (
	// troubled is that of a call to be made in another than the ordinary way.
	troubled = 75
	// eventful is that of something more to happen to a container.
	eventful = 550
)

func (g *generator) pod() {
	l := &g.life
	l.HostNetwork = g.chance(550)
	l.SharedPID = g.chance(120)
	switch n := g.r.IntN(100); {
	case n < 3:
		l.Handler = Boxed
	case n < 8:
		l.Handler = Mortal
	}
	if !l.HostNetwork && g.chance(150) {
		l.Port = int32(20000 + l.Index%10000) //nolint:gosec // small
	}
	containers := 1
	switch n := g.r.IntN(100); {
	case n < 5:
		containers = 0
	case n < 17:
		containers = 2
	}
	for range containers {
		c := Container{Code: int32(1 + g.r.IntN(99)), Lines: g.r.IntN(4), Volume: g.chance(100)} //nolint:gosec // small
		switch n := g.r.IntN(100); {
		case n < 45:
			c.Exits = Never
		case n < 60:
			c.Exits = OnTerm
		case n < 85:
			c.Exits = AtOnce
		default:
			c.Exits = Shortly
		}
		if g.chance(200) {
			c.Code = 0
		}
		l.Containers = append(l.Containers, c)
	}
}

// beginning is the pod's start.
func (g *generator) beginning() {
	g.call(Step{Op: RunPodSandbox})
	if g.chance(30) {
		g.event(0)
	}
	if g.chance(25) {
		g.add(Step{Op: pick(g, Unknown, Wrong)})
	}
}

// middle is the life of one container.
func (g *generator) middle(slot int) {
	g.call(Step{Op: CreateContainer, Slot: slot})
	if g.chance(40) {
		g.event(slot)
	}
	g.call(Step{Op: StartContainer, Slot: slot})
	for g.chance(eventful) {
		g.event(slot)
	}
}

// event is something that happens to a container that was started.
func (g *generator) event(slot int) {
	if len(g.life.Containers) == 0 {
		g.add(Step{Op: pick(g, Ask, Unknown, Wrong)})
		return
	}
	switch n := g.r.IntN(100); {
	case n < 30:
		g.call(Step{Op: ExecSync, Slot: slot, Code: int32(g.r.IntN(3) * g.r.IntN(40))}) //nolint:gosec // small
	case n < 42:
		g.add(Step{Op: Ask})
	case n < 50:
		g.add(Step{Op: Update, Slot: slot})
	case n < 56:
		g.add(Step{Op: Unknown})
	case n < 64:
		g.add(Step{Op: Wrong})
	case n < 72:
		g.add(Step{Op: Wait, Slot: slot})
	case n < 84:
		g.restart(slot)
	case n < 88:
		g.call(Step{Op: RunPodSandbox}) // it is there
	case n < 92:
		g.add(Step{Op: Renew})
	case n < 94:
		g.add(Step{Op: KillShim})
	case n < 97:
		g.add(Step{Op: KillInit, Slot: slot})
	case n < 99:
		g.add(Step{Op: KillDaemon})
	default:
		g.add(Step{Op: RestartDaemon})
	}
}

func (g *generator) restart(slot int) {
	if g.chance(300) {
		g.stop(slot)
	}
	g.add(Step{Op: Again, Slot: slot})
	g.call(Step{Op: StartContainer, Slot: slot})
}

func (g *generator) stop(slot int) {
	s := Step{Op: StopContainer, Slot: slot}
	switch {
	case g.life.Containers[slot].Exits == OnTerm && g.chance(700):
		s.Grace = 30
	case g.chance(20):
		s.Grace = 1 // waited for in vain by what does not end at SIGTERM
	}
	g.call(s)
}

// end is that of the containers and of the pod.
func (g *generator) end() {
	for slot := range g.life.Containers {
		if g.chance(400) {
			g.stop(slot)
		}
		if g.chance(400) {
			g.call(Step{Op: RemoveContainer, Slot: slot})
		}
	}
	if g.chance(700) {
		g.call(Step{Op: StopPodSandbox})
		if g.chance(30) {
			g.add(Step{Op: pick(g, Wrong, Ask, KillDaemon)})
		}
	}
	g.call(Step{Op: RemovePodSandbox})
	if g.chance(100) {
		g.add(Step{Op: Gone})
	}
}

// trouble makes a call be made in another way, or something happen in it.
func (g *generator) trouble(s *Step) {
	s.Blind = g.chance(500)
	if s.Op == ExecSync {
		s.How = pick(g, Twice, Together, Timed, Killed, Raced)
	} else {
		switch n := g.r.IntN(100); {
		case n < 10:
			s.How = Twice
		case n < 20:
			s.How = Together
		case n < 32:
			s.How = Timed
		case n < 35:
			s.How = Killed
		case n < 47:
			s.How = Raced
		default:
			g.fault(s)
			return
		}
	}
	switch s.How {
	case Timed, Killed:
		s.Millis = 1 + g.r.IntN(typical[s.Op])
	case Raced:
		s.With = pick(g, rivals[s.Op]...)
		s.Millis = g.r.IntN(typical[s.Op])
	default: // at once
	}
}

// typical is about how long a call takes, in milliseconds.
var typical = map[Op]int{
	RunPodSandbox: 120, CreateContainer: 40, StartContainer: 120, StopContainer: 40, RemoveContainer: 40,
	StopPodSandbox: 120, RemovePodSandbox: 120, ExecSync: 80,
}

// rivals are what a call may meet.
var rivals = map[Op][]Op{
	RunPodSandbox:    {Ask, Unknown},
	CreateContainer:  {StopPodSandbox, RemovePodSandbox, Ask},
	StartContainer:   {StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox, Ask},
	StopContainer:    {ExecSync, RemoveContainer, StopPodSandbox, Ask, Update},
	RemoveContainer:  {StopContainer, ExecSync, StartContainer, RemovePodSandbox, Ask},
	StopPodSandbox:   {CreateContainer, ExecSync, StopContainer, RemoveContainer, RemovePodSandbox, Ask},
	RemovePodSandbox: {CreateContainer, ExecSync, StopContainer, RemoveContainer, StopPodSandbox, Ask},
	ExecSync:         {StopContainer, StopPodSandbox, Ask, Update},
}

// fault lets something of the fault matrix befall a call.
func (g *generator) fault(s *Step) {
	switch p := paths[s.Op]; {
	case g.mortal(s):
	case g.chance(130):
		s.Faults = append(s.Faults, Fault{Point: g.place(s.Op), Kind: pick(g, "kill", "killafter", "kill*2", "killafter*2")})
	case g.chance(60):
		s.Faults = append(s.Faults, Fault{Point: "journal:" + pick(g, p.records...), Kind: "fail*1"})
	case len(p.actions) == 0:
		s.Faults = append(s.Faults, Fault{Point: "flow:" + p.flow, Kind: pick(g, "fail*1", "panic*1", g.slow())})
	case p.down:
		action := pick(g, g.life.actionsOf(s.Op)...)
		s.Faults = append(s.Faults, Fault{
			Point: p.point(action), Kind: pick(g, "fail*1", "fail*2", "fail", "late*1", "panic*1", "killshim*1", g.slow(), g.slow()),
		})
	default:
		g.climbing(s, p)
	}
}

// climbing lets an action fail on the way up, or hang, and perhaps its rollback too.
func (g *generator) climbing(s *Step, p path) {
	actions := g.life.actionsOf(s.Op)
	action := pick(g, actions...)
	kind := pick(g, "fail", "late", "panic", "hang", "hang", "killshim*1", g.slow())
	s.Faults = append(s.Faults, Fault{Point: p.point(action), Kind: kind})
	switch kind {
	case "hang":
		s.How = pick(g, Cancelled, Deadline)
	case "fail", "late", "panic":
		if g.chance(250) {
			s.Faults = append(s.Faults, Fault{
				Point: p.flow + "/undo:" + pick(g, actions...), Kind: pick(g, "fail*1", "fail*2", "panic*1"),
			})
		}
	}
}

func (g *generator) slow() string { return fmt.Sprintf("sleep%dms", 10+g.r.IntN(90)) }

// mortal kills another program than the daemon and its shims, if the life has one that can be killed.
func (g *generator) mortal(s *Step) bool {
	f := Fault{Kind: pick(g, "before", "after", "0.005", "0.01", "0.03")}
	plugin := !g.life.HostNetwork && g.chance(250)
	switch {
	case s.Op == RunPodSandbox && plugin:
		f.Program, f.Point = pick(g, "bridge", "portmap"), "ADD"
	case s.Op == StopPodSandbox && plugin:
		f.Program, f.Point = pick(g, "bridge", "portmap"), "DEL"
	case s.Op == StartContainer && g.life.Handler == Mortal:
		f.Program, f.Point = "runc", pick(g, "create", "start")
	case s.Op == StopContainer && g.life.Handler == Mortal:
		f.Program, f.Point = "runc", pick(g, "kill", "delete")
	default:
		return false
	}
	s.Faults = append(s.Faults, f)
	return true
}
