// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

// order is that of the rows of the tables.
var order = []string{
	"RunPodSandbox", "CreateContainer", "StartContainer", "pod start", "ExecSync",
	"StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox", "pod end",
}

// times are durations in milliseconds, by call.
type times map[string][]float64

func (t times) percentile(call string, p float64) float64 {
	s := t[call]
	if len(s) == 0 {
		return math.NaN()
	}
	sort.Float64s(s)
	i := int(math.Ceil(p/100*float64(len(s)))) - 1
	return s[max(0, min(i, len(s)-1))]
}

// peer is one runtime under measurement.
type peer struct {
	name   string
	daemon *harness.Daemon
	cgroup string // parent of its pods
	client *harness.Client
	idle   usage // of the daemon just after its start
	seq    atomic.Int64

	mu    sync.Mutex
	times times
}

// pod is what a life needs to remember.
type pod struct {
	config    *cri.PodSandboxConfig
	id        string
	container string
}

// start starts the daemon, measures it at rest, pulls the image and warms up.
func (p *peer) start(ctx context.Context) error {
	if err := p.daemon.Start(ctx); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // at rest
	var err error
	if p.idle, err = usageOf(p.daemon.PID()); err != nil {
		return err
	}
	if p.client, err = harness.Dial(p.daemon.Socket); err != nil {
		return err
	}
	if _, err := p.client.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: images.Busybox}}); err != nil {
		return err
	}
	p.times = times{}
	return p.lives(ctx, 2, 1)
}

func (p *peer) stop() error {
	if p.client == nil {
		return p.daemon.Stop()
	}
	return errors.Join(p.client.Close(), p.daemon.Stop())
}

// lives runs n whole lives of a pod with one container, c at a time.
func (p *peer) lives(ctx context.Context, n, c int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(c)
	for range n {
		g.Go(func() error {
			one, err := p.up(ctx)
			if err != nil {
				return err
			}
			err = p.timed("ExecSync", func() error {
				_, err := p.client.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: one.container, Cmd: []string{"true"}, Timeout: 60})
				return err
			})
			return errors.Join(err, p.down(ctx, one))
		})
	}
	return g.Wait()
}

func (p *peer) timed(call string, f func() error) error {
	t := time.Now()
	err := f()
	d := time.Since(t)
	if err != nil {
		return fmt.Errorf("%s: %w", call, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times[call] = append(p.times[call], float64(d.Nanoseconds())/1e6)
	return nil
}

// up is what kubelet does to start a pod.
func (p *peer) up(ctx context.Context) (*pod, error) {
	one := &pod{config: p.config()}
	return one, p.timed("pod start", func() error {
		err := p.timed("RunPodSandbox", func() error {
			r, err := p.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: one.config})
			one.id = r.GetPodSandboxId()
			return err
		})
		if err != nil {
			return err
		}
		err = p.timed("CreateContainer", func() error {
			r, err := p.client.CreateContainer(ctx, &cri.CreateContainerRequest{
				PodSandboxId: one.id, SandboxConfig: one.config, Config: containerConfig(),
			})
			one.container = r.GetContainerId()
			return err
		})
		if err != nil {
			return err
		}
		return p.timed("StartContainer", func() error {
			_, err := p.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: one.container})
			return err
		})
	})
}

func (p *peer) down(ctx context.Context, one *pod) error {
	calls := []struct {
		name string
		f    func() error
	}{
		{"StopContainer", func() error {
			_, err := p.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: one.container})
			return err
		}},
		{"RemoveContainer", func() error {
			_, err := p.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: one.container})
			return err
		}},
		{"StopPodSandbox", func() error {
			_, err := p.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: one.id})
			return err
		}},
		{"RemovePodSandbox", func() error {
			_, err := p.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: one.id})
			return err
		}},
	}
	return p.timed("pod end", func() error {
		for _, c := range calls {
			if err := p.timed(c.name, c.f); err != nil {
				return err
			}
		}
		return os.RemoveAll(one.config.GetLogDirectory())
	})
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

func unconfined() *cri.SecurityProfile {
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
}

func (p *peer) config() *cri.PodSandboxConfig {
	name := fmt.Sprintf("bench-%d", p.seq.Add(1))
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "bench"},
		Hostname:     name,
		LogDirectory: filepath.Join(os.TempDir(), p.name, name),
		DnsConfig:    &cri.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"bench.svc.cluster.local"}, Options: []string{"ndots:5"}},
		Labels:       map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "bench", "io.kubernetes.pod.uid": name},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    p.cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces(), Seccomp: unconfined()},
		},
	}
}

func containerConfig() *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "c"},
		Image:    &cri.ImageSpec{Image: images.Busybox, UserSpecifiedImage: images.Busybox},
		Command:  []string{"sleep", "36000"},
		LogPath:  "c.log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces(), Seccomp: unconfined()},
		},
	}
}
