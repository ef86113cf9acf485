// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
)

// step does what a step says.
func (l *life) step(s story.Step) error {
	switch s.Op {
	case story.Ask:
		return l.ask()
	case story.Update:
		return l.update(s.Slot)
	case story.Unknown:
		return l.unknown(l.ctx)
	case story.Wrong:
		return l.wrong()
	case story.Gone:
		return l.vanished()
	case story.Wait:
		return l.wait(s.Slot)
	case story.Again:
		return l.replace(s.Slot)
	case story.Renew:
		return l.renew()
	case story.KillDaemon:
		return l.n.end(syscall.SIGKILL)
	case story.RestartDaemon:
		return l.n.end(syscall.SIGTERM)
	case story.KillShim:
		return l.killShim()
	case story.KillInit:
		return l.killInit(s.Slot)
	default:
		return l.trouble(s)
	}
}

// wait waits for the end of a container that ends by itself.
func (l *life) wait(slot int) error {
	c := l.container(slot)
	if c.id == "" || !c.started || c.waits() {
		l.tell("nothing to do")
		return nil
	}
	return l.awaitEnd(c)
}

func (l *life) awaitEnd(c *container) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		s, err := l.status(c)
		if err != nil || s.GetState() == cri.ContainerState_CONTAINER_EXITED {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("container %s does not end: it is %s", c.id, s.GetState())
		}
	}
}

// replace makes another container in place of one, which ends if it has not.
func (l *life) replace(slot int) error {
	if err := l.needPod(); err != nil {
		return err
	}
	c := l.container(slot)
	switch {
	case c.id == "":
	case c.waits() || !c.started:
		stop := story.Step{Op: story.StopContainer, Slot: slot}
		l.asked(stop)
		if err := l.again(stop, c); err != nil {
			return err
		}
	default:
		if err := l.awaitEnd(c); err != nil {
			return err
		}
	}
	// The last one stays, as with kubelet.
	for _, before := range l.pod.containers {
		if before.name == c.name && before != c {
			if err := l.drop(before, before); err != nil {
				return err
			}
			break
		}
	}
	l.slots[slot] = nil
	return l.needContainer(slot, nil)
}

// killShim kills the shim of the pod. Its containers run on, and nobody sees how they end.
func (l *life) killShim() error {
	p := l.pod
	if p == nil || p.stopped || p.lost {
		l.tell("nothing to do")
		return nil
	}
	pids, err := pidsWith(p.id, "containerd-shim")
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("pod %s has no shim", p.id)
	}
	p.lose()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	l.n.tally.add("happens", "a shim dies")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		found, err := l.find(p.attempt)
		if err != nil || found.GetState() == cri.PodSandboxState_SANDBOX_NOTREADY {
			return err
		}
	}
	return fmt.Errorf("pod %s has no shim any more, and is listed as ready", p.id)
}

// killInit kills the first process of a container.
func (l *life) killInit(slot int) error {
	c := l.container(slot)
	if c.id == "" || !c.runs() {
		l.tell("nothing to do")
		return nil
	}
	var a *cri.ContainerStatusResponse
	err := l.sure("ContainerStatus", func(ctx context.Context) (err error) {
		a, err = l.n.client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
		return err
	})
	if err != nil {
		return err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(a.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		return fmt.Errorf("container %s runs, and has no process: %q (%w)", c.id, a.GetInfo(), orNil(err))
	}
	c.end(false)
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
		return fmt.Errorf("process %d of container %s: %w", info.PID, c.id, err)
	}
	return l.awaitEnd(c)
}

// pidsWith are the processes of a program of some name with something in their command line.
func pidsWith(text, program string) ([]int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range found {
		raw, err := os.ReadFile(path)
		first, _, _ := strings.Cut(string(raw), "\x00")
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err := errors.Join(err, perr); err != nil || !strings.Contains(string(raw), text) || !strings.HasPrefix(filepath.Base(first), program) {
			continue // gone meanwhile, or another
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
