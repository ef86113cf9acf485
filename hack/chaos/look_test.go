// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// look compares what the runtime tells of a life with what must be.
func (l *life) look() error {
	pods, err := l.pods()
	if err != nil {
		return err
	}
	containers, err := l.containers()
	if err != nil {
		return err
	}
	known := slices.Clone(l.old)
	if l.pod != nil {
		known = append(known, l.pod)
	}
	listed := map[string]bool{}
	for _, found := range pods {
		listed[found.GetId()] = true
		i := slices.IndexFunc(known, func(p *pod) bool { return p.id == found.GetId() })
		if i < 0 {
			return fmt.Errorf("pod %s is listed (%s), which nobody was told of, or which was removed", found.GetId(), found.GetState())
		}
		if err := l.lookAtPod(known[i], found); err != nil {
			return err
		}
	}
	for _, found := range containers {
		listed[found.GetId()] = true
		if !slices.ContainsFunc(known, func(p *pod) bool { return p.has(found) }) {
			return fmt.Errorf("container %s (%s) is listed (%s), which nobody was told of, or which was removed", found.GetId(), found.GetMetadata(), found.GetState())
		}
	}
	for _, p := range known {
		if !listed[p.id] {
			return fmt.Errorf("pod %s is not listed", p.id)
		}
		for _, c := range p.containers {
			if !listed[c.id] {
				return fmt.Errorf("container %s is not listed", c.id)
			}
			if err := l.lookAt(c); err != nil {
				return fmt.Errorf("container %s (%s): %w", c.id, c.name, err)
			}
		}
	}
	return nil
}

func (p *pod) has(found *cri.Container) bool {
	return p.id == found.GetPodSandboxId() && slices.ContainsFunc(p.containers, func(c *container) bool { return c.id == found.GetId() })
}

func (l *life) lookAtPod(p *pod, found *cri.PodSandbox) error {
	isReady := found.GetState() == cri.PodSandboxState_SANDBOX_READY
	switch {
	case p.created != 0 && p.created != found.GetCreatedAt():
		return fmt.Errorf("pod %s was created at %d, and now at %d", p.id, p.created, found.GetCreatedAt())
	case isReady && p.down:
		return fmt.Errorf("pod %s was stopped, and is listed as ready", p.id)
	case !isReady && !p.stopped && !p.lost:
		return fmt.Errorf("pod %s is not ready any more", p.id)
	case found.GetMetadata().GetAttempt() != p.attempt || found.GetMetadata().GetName() != l.name:
		return fmt.Errorf("pod %s is listed as %s", p.id, found.GetMetadata())
	}
	p.created = found.GetCreatedAt()
	if !isReady || p.stopped {
		return nil
	}
	var answer *cri.PodSandboxStatusResponse
	err := l.sure("PodSandboxStatus", func(ctx context.Context) (err error) {
		answer, err = l.n.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
		return err
	})
	if err != nil {
		return err
	}
	ip := answer.GetStatus().GetNetwork().GetIp()
	switch {
	case answer.GetStatus().GetState() != found.GetState() && !p.lost:
		return fmt.Errorf("pod %s is listed as %s, its status is %s", p.id, found.GetState(), answer.GetStatus().GetState())
	case (ip == "") != l.story.HostNetwork:
		return fmt.Errorf("pod %s has the address %q", p.id, ip)
	case ip == "":
		return nil
	}
	return l.n.holds(p.id, ip)
}

// lookAt checks a container.
func (l *life) lookAt(c *container) error {
	s, err := l.status(c)
	if err != nil {
		return err
	}
	was := c.seen
	c.seen = s.GetState()
	switch {
	case s.GetState() == cri.ContainerState_CONTAINER_UNKNOWN:
		return fmt.Errorf("its state is unknown: %s", s.GetMessage())
	case s.GetState() < was:
		return fmt.Errorf("it was %s, and is %s", was, s.GetState())
	case !c.tried && !c.pod.lost && s.GetState() != cri.ContainerState_CONTAINER_CREATED:
		return fmt.Errorf("it was never started, and is %s", s.GetState())
	case c.started && s.GetState() == cri.ContainerState_CONTAINER_CREATED:
		return errors.New("it was started, and is only created")
	case c.down && s.GetState() == cri.ContainerState_CONTAINER_RUNNING:
		return errors.New("it was stopped, and runs")
	case s.GetState() != cri.ContainerState_CONTAINER_RUNNING && c.started && c.waits() && !c.ended && !c.pod.lost:
		return fmt.Errorf("nobody stopped it, and it is %s: code %d, reason %s, %s", s.GetState(), s.GetExitCode(), s.GetReason(), s.GetMessage())
	case c.created != 0 && c.created != s.GetCreatedAt():
		return fmt.Errorf("it was created at %d, and now at %d", c.created, s.GetCreatedAt())
	case s.GetStartedAt() != 0 && s.GetStartedAt() < s.GetCreatedAt():
		return fmt.Errorf("it was started at %d, and created at %d", s.GetStartedAt(), s.GetCreatedAt())
	}
	c.created = s.GetCreatedAt()
	if s.GetState() != cri.ContainerState_CONTAINER_EXITED {
		return nil
	}
	return l.lookAtEnd(c, s, was == cri.ContainerState_CONTAINER_EXITED)
}

// lookAtEnd checks how a container has ended; known says that this was told before.
func (l *life) lookAtEnd(c *container, s *cri.ContainerStatus, known bool) error {
	code, reason := s.GetExitCode(), s.GetReason()
	// containerd's shims keep no exit for a daemon that is away, nor what is printed in the moment of the end.
	forgetful := l.story.Handler == story.Boxed && l.n.died() > 0
	if forgetful {
		c.may(unknown)
	}
	switch {
	case known && (code != c.code || s.GetFinishedAt() != c.finish):
		return fmt.Errorf("it has ended with %d at %d; before it was %d at %d", code, s.GetFinishedAt(), c.code, c.finish)
	case s.GetFinishedAt() < s.GetStartedAt() || s.GetFinishedAt() < s.GetCreatedAt():
		return fmt.Errorf("it has ended at %d, was started at %d, and created at %d", s.GetFinishedAt(), s.GetStartedAt(), s.GetCreatedAt())
	case !c.codes[code] && (code != c.plan.Code || c.plan.Exits == story.Never):
		return fmt.Errorf("it has ended with %d (%s, %s); its plan is %+v, and for what was done to it: %v", code, reason, s.GetMessage(), c.plan, c.codes)
	case reason == "" || (reason == "Completed") != (code == 0):
		return fmt.Errorf("it has ended with %d, and the reason %q", code, reason)
	}
	if !known {
		l.n.tally.add("ends", fmt.Sprintf("%s %s", c.plan.Exits, ending(c, code)))
	}
	c.code, c.finish = code, s.GetFinishedAt()
	if !c.natural(code) || c.pod.lost || known || c.ended || !c.started || forgetful {
		return nil
	}
	lines, err := l.output(c)
	if err != nil {
		return err
	}
	var want []string
	for i := range c.plan.Lines {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	if !slices.Equal(lines, want) {
		return fmt.Errorf("it has ended with %d, and its log has %q, not %q", code, lines, want)
	}
	return nil
}

func ending(c *container, code int32) string {
	if code == c.plan.Code && c.plan.Exits != story.Never {
		return "with its own code"
	}
	return fmt.Sprint(code)
}

// output is what the log of a container has.
func (l *life) output(c *container) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(l.logs(), fmt.Sprintf("%s-%d.log", c.name, c.attempt)))
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(parts) == 4 && parts[1] == "stderr" && strings.Contains(parts[3], "exec fifo") && c.codes[startError] {
			continue // runc's own words, when it is cut off in the middle of a start
		}
		if len(parts) != 4 || parts[1] != "stdout" || parts[2] != "F" {
			return nil, fmt.Errorf("a line of its log is %q", line)
		}
		out = append(out, parts[3])
	}
	return out, nil
}
