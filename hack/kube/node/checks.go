// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	core "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *Show) logs(ctx context.Context) error {
	text, err := s.get(ctx, http.MethodGet, "/containerLogs/default/"+mirrored+"/writer", nil)
	if err == nil && text != "wrote it\n" {
		err = fmt.Errorf("the log is %q", text)
	}
	return err
}

func (s *Show) exec(ctx context.Context) error {
	text, err := s.run(ctx, "writer", "cat", "/page/index.html")
	if err == nil && text != "written\n" {
		err = fmt.Errorf("the command says %q", text)
	}
	return err
}

// run has kubelet run a command in a container.
func (s *Show) run(ctx context.Context, container string, command ...string) (string, error) {
	query := url.Values{"cmd": {strings.Join(command, " ")}}
	return s.get(ctx, http.MethodPost, "/run/default/"+mirrored+"/"+container, query)
}

// summary is the part of kubelet's statistics that is looked at.
type summary struct {
	Pods []struct {
		PodRef     struct{ Name string }
		Containers []struct {
			Name   string
			CPU    struct{ UsageCoreNanoSeconds uint64 }
			Memory struct{ WorkingSetBytes uint64 }
		}
	}
}

func (s *Show) stats(ctx context.Context) error {
	return eventually(ctx, func() error {
		text, err := s.get(ctx, http.MethodGet, "/stats/summary", nil)
		if err != nil {
			return err
		}
		var all summary
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return err
		}
		seen := 0
		for _, p := range all.Pods {
			for _, c := range p.Containers {
				if p.PodRef.Name == mirrored && c.CPU.UsageCoreNanoSeconds > 0 && c.Memory.WorkingSetBytes > 0 {
					seen++
				}
			}
		}
		if seen != 2 {
			return fmt.Errorf("%d containers have statistics: %s", seen, text)
		}
		text, err = s.get(ctx, http.MethodGet, "/metrics/cadvisor", nil)
		if err == nil && !strings.Contains(text, `container_memory_working_set_bytes{container="writer"`) {
			err = errors.New("cAdvisor has no metrics of the container")
		}
		return err
	})
}

// restarted waits until one container has been restarted since the last time, and no other.
func (s *Show) restarted(ctx context.Context, name string) error {
	before := s.last
	return s.ready(ctx, func(p core.Pod) error {
		for i, c := range p.Status.ContainerStatuses {
			old := before.Status.ContainerStatuses[i]
			more := int32(0)
			if c.Name == name {
				more = 1
			}
			if c.RestartCount != old.RestartCount+more || (c.ContainerID != old.ContainerID) != (more == 1) {
				return fmt.Errorf("%s was %s with %d restarts, is %s with %d", c.Name, old.ContainerID, old.RestartCount, c.ContainerID, c.RestartCount)
			}
		}
		return nil
	})
}

// same waits until the pod is ready with the containers of the last time.
func (s *Show) same(ctx context.Context) error { return s.restarted(ctx, "") }

// killed kills a container's process on the node.
func (s *Show) killed(ctx context.Context) error {
	_, id, _ := strings.Cut(s.last.Status.ContainerStatuses[0].ContainerID, "://")
	pid, err := s.pid(ctx, id)
	if err != nil {
		return err
	}
	if out, err := s.node.Command(ctx, "kill", "-KILL", pid).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return s.restarted(ctx, s.last.Status.ContainerStatuses[0].Name)
}

// pid is the process ID, in the node, of a container's first process.
func (s *Show) pid(ctx context.Context, id string) (string, error) {
	c, err := s.dial()
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	r, err := c.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct{ PID json.Number }
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil {
		return "", fmt.Errorf("the status of %s has no process ID: %w", id, err)
	}
	return info.PID.String(), nil
}

func (s *Show) unwell(ctx context.Context) error {
	if _, err := s.run(ctx, "writer", "rm", "/page/index.html"); err != nil {
		return err
	}
	return s.restarted(ctx, "writer")
}

func (s *Show) runtimeKilled(ctx context.Context) error {
	if err := s.node.KillRuntime(ctx); err != nil {
		return err
	}
	if err := s.same(ctx); err != nil {
		return err
	}
	// Kubelet's connection takes a moment to be there again.
	return eventually(ctx, func() error { return s.exec(ctx) })
}

func (s *Show) kubeletRestarted(ctx context.Context) error {
	if err := s.node.RestartKubelet(ctx); err != nil {
		return err
	}
	if err := s.same(ctx); err != nil {
		return err
	}
	return s.answers(ctx)
}

func (s *Show) rebooted(ctx context.Context) error {
	before := s.last
	if err := s.node.Reboot(ctx); err != nil {
		return err
	}
	s.boots++
	err := s.ready(ctx, func(p core.Pod) error {
		for i, c := range p.Status.ContainerStatuses {
			if c.ContainerID == before.Status.ContainerStatuses[i].ContainerID {
				return fmt.Errorf("%s is said to be as before the reboot", c.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.answers(ctx)
}

// goes removes the manifest and waits until no sandbox runs; what is remembered of them until
// kubelet collects it, once a minute, is no matter.
func (s *Show) goes(ctx context.Context) error {
	if err := os.Remove(s.manifest()); err != nil {
		return err
	}
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	running := &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}
	err = eventually(ctx, func() error {
		r, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: running})
		if err == nil && len(r.GetItems()) > 0 {
			err = fmt.Errorf("there are still %d sandboxes", len(r.GetItems()))
		}
		return err
	})
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		p, err := s.pod(ctx)
		if err == nil {
			return fmt.Errorf("kubelet still has the pod, %s", p.Status.Phase)
		}
		return nil
	})
}
