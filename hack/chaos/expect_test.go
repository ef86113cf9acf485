// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// expected is the answer to the call of a step that nothing is done to; empty: any.
func (l *life) expected(s story.Step) []codes.Code {
	c := l.container(s.Slot)
	switch s.Op {
	case story.RunPodSandbox:
		if l.pod != nil {
			return []codes.Code{codes.AlreadyExists}
		}
	case story.CreateContainer:
		if c.id != "" {
			return []codes.Code{codes.AlreadyExists}
		}
	case story.StartContainer:
		switch {
		case c.started:
			return []codes.Code{codes.FailedPrecondition}
		case c.tried:
			return nil
		}
	case story.ExecSync:
		switch {
		case c.pod.lost || !c.waits() && c.started || c.tried && !c.started:
			return nil
		case !c.started || c.ended:
			return []codes.Code{codes.FailedPrecondition}
		}
	default: // going down succeeds
	}
	return []codes.Code{codes.OK}
}

// asked notes what may be true from now on, since it was asked for.
func (l *life) asked(s story.Step) {
	c := l.container(s.Slot)
	odd := s.How != story.Once && s.How != story.Twice || len(s.Faults) > 0
	switch s.Op {
	case story.StartContainer:
		c.tried = true
		if odd {
			c.may(startError, unknown, killed)
		}
	case story.StopContainer, story.RemoveContainer:
		c.end(s.Grace > 0)
	case story.StopPodSandbox, story.RemovePodSandbox:
		l.pod.stopped = true
		l.n.frees(l.pod.id)
		for _, c := range l.pod.containers {
			c.end(false)
		}
	default: // changes nothing
	}
	for _, f := range s.Faults {
		if strings.HasPrefix(f.Kind, "killshim") && l.pod != nil {
			l.pod.lose()
		}
	}
}

// Exit codes that are not a program's own.
const (
	startError = 128     // it could not be started
	killed     = 128 + 9 // by SIGKILL
	terminated = 128 + 15
	unknown    = 255 // nobody could see it
)

// end notes that somebody wants a container to end.
func (c *container) end(gently bool) {
	c.ended = true
	c.may(killed)
	if gently {
		c.may(terminated)
	}
}

// lose notes that the shim of a pod is killed.
func (p *pod) lose() {
	p.lost = true
	for _, c := range p.containers {
		c.may(startError, killed, unknown)
	}
}
