// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package story invents what a client does to a runtime, and what befalls them both: lives of
// pods, made of calls, and of faults and deaths in the middle of them. A life follows from a seed
// and its number alone; so the same seed is the same story, however many lives are played side by
// side, and one life can be played again without the others.
package story

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Op is something that a client does, or that happens.
type Op string

// What a client asks for. Calls are named as CRI does.
const (
	RunPodSandbox    Op = "RunPodSandbox"
	CreateContainer  Op = "CreateContainer"
	StartContainer   Op = "StartContainer"
	StopContainer    Op = "StopContainer"
	RemoveContainer  Op = "RemoveContainer"
	StopPodSandbox   Op = "StopPodSandbox"
	RemovePodSandbox Op = "RemovePodSandbox"
	ExecSync         Op = "ExecSync"

	// Ask makes all calls that only ask: lists, statuses, stats, URLs that are not used.
	Ask Op = "ask"
	// Update changes resources, and reopens the log.
	Update Op = "update"
	// Wait waits for a container that ends by itself.
	Wait Op = "wait for the end"
	// Again makes another container in place of one, as kubelet does when it has ended.
	Again Op = "restart container"
	// Renew makes another pod in place of one, as kubelet does when it is not ready.
	Renew Op = "restart pod"
	// Unknown makes calls with IDs that nothing has.
	Unknown Op = "unknown IDs"
	// Wrong makes calls that cannot succeed: in the wrong order, of the wrong kind, of no sense.
	Wrong Op = "wrong calls"
	// Gone makes calls with the IDs of what has been removed.
	Gone Op = "IDs of what is gone"

	// KillDaemon kills the daemon between two calls.
	KillDaemon Op = "kill daemon"
	// RestartDaemon ends it in order.
	RestartDaemon Op = "restart daemon"
	// KillShim kills the shim of the pod.
	KillShim Op = "kill shim"
	// KillInit kills the first process of a container.
	KillInit Op = "kill container"
)

// How is in which way a call is made.
type How string

const (
	// Once is the ordinary way.
	Once How = ""
	// Twice makes the call again when it has been answered.
	Twice How = "twice"
	// Together makes the same call several times at once.
	Together How = "together"
	// Cancelled gives the call up while its fault hangs.
	Cancelled How = "cancelled"
	// Deadline has a deadline that passes while its fault hangs.
	Deadline How = "deadline"
	// Timed gives the call up after some time; what it came to by then is chance.
	Timed How = "given up"
	// Killed kills the daemon after some time.
	Killed How = "daemon killed"
	// Raced makes another call at the same time.
	Raced How = "raced"
)

// Fault is what befalls a call.
type Fault struct {
	// Point and Kind are as the daemon that is built with faults knows them.
	Point, Kind string
	// Program is another program that is killed: an OCI runtime or a CNI plugin; Kind is then
	// when ("before", "after", or seconds since its start) and Point its verb.
	Program string
}

// Deadly says whether the fault kills the daemon.
func (f Fault) Deadly() bool {
	return f.Program == "" && (strings.HasPrefix(f.Kind, "kill") && !strings.HasPrefix(f.Kind, "killshim"))
}

// String tells the fault in a word.
func (f Fault) String() string { return strings.TrimSpace(f.Program+" "+f.Point) + "=" + f.Kind }

// Step is one thing that happens in a life.
type Step struct {
	Op  Op
	How How
	// Slot is the container, by its place in the pod.
	Slot int
	// Faults befall the call.
	Faults []Fault
	// Millis is when a call is given up, or the daemon killed, after its begin.
	Millis int
	// Grace is that of a stop, in seconds.
	Grace int64
	// Code is the exit code of a command.
	Code int32
	// With is the call that is made at the same time.
	With Op
	// Blind repeats a call whose end is not known without looking first.
	Blind bool
}

// Exits is how a container's process ends.
type Exits string

// What the processes of containers do.
const (
	Never   Exits = "sleeps"              // until it is killed
	OnTerm  Exits = "ends at SIGTERM"     // with a code of its own
	AtOnce  Exits = "ends at once"        // with a code of its own
	Shortly Exits = "ends after a moment" // with a code of its own
)

// Container is a container of a life.
type Container struct {
	Exits Exits
	Code  int32
	// Lines is how many it writes before it ends.
	Lines int
	// Volume says that an image is mounted in it.
	Volume bool
}

// Life is that of a pod, or of one after the other.
type Life struct {
	Index   int
	Handler string
	// HostNetwork, SharedPID and Port are the pod's.
	HostNetwork, SharedPID bool
	Port                   int32
	Containers             []Container
	Steps                  []Step
}

// Name is that of the life's pods, of the same length for all and part of no other's.
func (l Life) Name() string { return fmt.Sprintf("life-%06d", l.Index) }

// String tells the whole life, a line for each step.
func (l Life) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: handler %q, host network %t, shared PIDs %t, port %d", l.Name(), l.Handler, l.HostNetwork, l.SharedPID, l.Port)
	for i, c := range l.Containers {
		fmt.Fprintf(&b, "; container %d %s, code %d, %d lines, volume %t", i, c.Exits, c.Code, c.Lines, c.Volume)
	}
	b.WriteString("\n")
	for i, s := range l.Steps {
		fmt.Fprintf(&b, "  %2d %s\n", i, s)
	}
	return b.String()
}

// String tells a step in a line.
func (s Step) String() string {
	out := string(s.Op)
	switch s.Op {
	case CreateContainer, StartContainer, StopContainer, RemoveContainer, ExecSync, Again, Wait, Update, KillInit:
		out += fmt.Sprintf(" %d", s.Slot)
	default: // of the pod
	}
	if s.Op == StopContainer {
		out += fmt.Sprintf(" grace %ds", s.Grace)
	}
	if s.Op == ExecSync {
		out += fmt.Sprintf(" exit %d", s.Code)
	}
	if s.How != Once {
		out += ", " + string(s.How)
	}
	if s.Millis > 0 {
		out += fmt.Sprintf(" after %d ms", s.Millis)
	}
	if s.With != "" {
		out += " with " + string(s.With)
	}
	for _, f := range s.Faults {
		out += ", " + f.String()
	}
	if s.Blind {
		out += ", repeated blindly"
	}
	return out
}

// Hash names the whole story of so many lives.
func Hash(seed uint64, lives int) string {
	sum := sha256.New()
	for i := range lives {
		_, _ = sum.Write([]byte(New(seed, i).String())) // never fails
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}
