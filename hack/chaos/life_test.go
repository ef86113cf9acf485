// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/images"
)

// life is a life that is being played: what its client knows, which is the model of what must be.
type life struct {
	n      *node
	story  story.Life
	name   string
	ctx    context.Context //nolint:containedctx // of this life
	chance bool            // what comes of it is chance

	pod   *pod   // the one that is meant to be there, nil before it was run
	old   []*pod // those before it, that have not been removed yet
	gone  ids
	next  uint32       // the attempt of the next pod
	slots []*container // the one of each slot that is meant to be there
	// attempts are those of the next containers of the slots.
	attempts []uint32
	extra    int // containers that were made beside those of the slots

	told []string // what came of it, in words
	came []string // what came of each step, in a line
}

// ids are of pods and of containers.
type ids struct{ pods, containers []string }

// pod is what the client knows of a pod.
type pod struct {
	id      string
	attempt uint32
	// lost says that its shim may be dead: it need not be ready, and exit codes may be lost.
	lost bool
	// stopped says that it has been asked to stop; down that this has been answered.
	stopped, down bool
	created       int64
	containers    []*container
}

// container is what the client knows of a container.
type container struct {
	id, name string // the id is empty until it was made
	pod      *pod
	slot     int
	attempt  uint32
	plan     story.Container
	seen     cri.ContainerState
	// started says that a start was answered; tried that one was asked for.
	started, tried bool
	// ended says that somebody wanted it to end, so that it need not run; down that this was answered.
	ended, down bool
	// codes are those that it may end with beside that of its plan.
	codes           map[int32]bool
	created, finish int64
	code            int32
}

func newLife(n *node, s story.Life) *life {
	return &life{n: n, story: s, name: s.Name(), slots: make([]*container, len(s.Containers)), attempts: make([]uint32, len(s.Containers))}
}

// play lives the life to its end. Its error tells what is wrong with the runtime.
func (l *life) play(ctx context.Context) error {
	l.ctx = ctx
	for i, s := range l.story.Steps {
		l.chance = false
		start := len(l.told)
		err := l.step(s)
		if err == nil {
			err = l.look()
		}
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i, s, err)
		}
		l.n.tally.add("steps", string(s.Op))
		l.came = append(l.came, fmt.Sprintf("%s %2d %s: %s", l.name, i, s, strings.Join(l.told[start:], ", ")))
		l.n.past.add(l.came[i])
	}
	if l.pod != nil || len(l.old) > 0 {
		return errors.New("the story ends and the pod is not removed")
	}
	return os.RemoveAll(l.logs())
}

// tell notes what came of a step, as far as it follows from the story.
func (l *life) tell(what string) {
	if !l.chance {
		l.told = append(l.told, what)
	}
}

func (l *life) logs() string { return filepath.Join(l.n.lab.Dir, "logs", l.n.daemon.Name, l.name) }

// call makes a call, and says whether something beyond this life may have disturbed it: the death
// of the daemon, or a journal that could not be written.
func (l *life) call(ctx context.Context, name string, f func(context.Context) error) (rough bool, err error) {
	deaths, err := l.n.serving()
	if err != nil {
		return false, err
	}
	fails, err := l.n.faults.failed()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, rpcTimeout)
	defer cancel()
	begin := time.Now()
	err = f(ctx)
	took := time.Since(begin)
	l.n.tally.add("calls", name)
	l.n.tally.add("answers", status.Code(err).String())
	now := l.n.died()
	for deadline := time.Now().Add(patience); broken(err) && now == deaths && time.Now().Before(deadline); now = l.n.died() {
		time.Sleep(5 * time.Millisecond)
	}
	failsNow, ferr := l.n.faults.failed()
	if ferr != nil {
		return false, ferr
	}
	rough = now != deaths || failsNow != fails
	if !rough {
		l.n.tally.took(name, took)
	}
	return rough, err
}

// broken tells a connection that broke from a daemon that answers that something is unavailable.
func broken(err error) bool {
	s := status.Convert(err)
	if s.Code() != codes.Unavailable {
		return false
	}
	for _, sign := range []string{"connection error: desc", "error reading from server", "transport is closing", "closing transport"} {
		if strings.HasPrefix(s.Message(), sign) {
			return true
		}
	}
	return false
}

// sure makes a call that must succeed; one that the death of the daemon disturbs is made again.
func (l *life) sure(name string, f func(context.Context) error) error {
	for tries := 0; ; tries++ {
		rough, err := l.call(l.ctx, name, f)
		if err == nil || !rough || tries == maxTries {
			return named(name, err)
		}
	}
}

// maxTries is how often a call is made again that something beyond a life disturbs.
const maxTries = 20

func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (l *life) podConfig(attempt uint32) *cri.PodSandboxConfig {
	c := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: l.name, Uid: l.name + "-uid", Namespace: "default", Attempt: attempt},
		Hostname:     l.name,
		LogDirectory: l.logs(),
		Labels:       map[string]string{"life": l.name},
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: l.namespaces()}},
	}
	if l.story.Port > 0 {
		c.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: l.story.Port}}
	}
	return c
}

func (l *life) namespaces() *cri.NamespaceOption {
	ns := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	if l.story.SharedPID {
		ns.Pid = cri.NamespaceMode_POD
	}
	if l.story.HostNetwork {
		ns.Network = cri.NamespaceMode_NODE
	}
	return ns
}

func (l *life) containerConfig(name string, attempt uint32, c story.Container) *cri.ContainerConfig {
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &cri.ImageSpec{Image: images.Busybox, UserSpecifiedImage: images.Busybox},
		Command:  []string{"sh", "-c", script(c)},
		LogPath:  fmt.Sprintf("%s-%d.log", name, attempt),
		Labels:   map[string]string{"life": l.name},
		Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: l.namespaces()}},
	}
	if c.Volume {
		config.Mounts = []*cri.Mount{{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: images.Pause}}}
	}
	return config
}

// slotName is that of the containers of a slot, part of no other life's.
func (l *life) slotName(slot int) string { return fmt.Sprintf("c%d-%s", slot, l.name) }

// ready is the last line of a container that waits for its end.
const ready = "ready"

func script(c story.Container) string {
	lines := ""
	for i := range c.Lines {
		lines += fmt.Sprintf("echo line %d; ", i)
	}
	switch c.Exits {
	case story.Never:
		return lines + "echo " + ready + "; exec sleep 100000"
	case story.OnTerm:
		return fmt.Sprintf("trap 'exit %d' TERM; %secho %s; sleep 100000 & wait", c.Code, lines, ready)
	case story.Shortly:
		return fmt.Sprintf("sleep 0.2; %sexit %d", lines, c.Code)
	default:
		return fmt.Sprintf("%sexit %d", lines, c.Code)
	}
}

// waits says whether a container runs until somebody ends it.
func (c *container) waits() bool {
	return c.plan.Exits == story.Never || c.plan.Exits == story.OnTerm
}

// may notes codes that a container may end with.
func (c *container) may(codes ...int32) {
	for _, code := range codes {
		c.codes[code] = true
	}
}

// code names an answer.
func code(err error) string {
	if err == nil {
		return "ok"
	}
	c := codes.OK
	for e := err; (c == codes.OK || c == codes.Unknown) && e != nil; e = errors.Unwrap(e) {
		c = status.Code(e)
	}
	return c.String()
}
