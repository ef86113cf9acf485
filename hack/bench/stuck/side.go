// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

const (
	// atOnce is how many pods are made side by side.
	atOnce = 4
	// patience is what a call may take that is not expected to.
	patience = 5 * time.Second
	// endless is longer than anything here should take.
	endless = 3 * time.Minute
)

// side is one runtime under measurement.
type side struct {
	name    string
	bounded bool // whether it is held to the bounds
	make    func(harness.Options) (*harness.Daemon, error)
	extra   string

	lab     *harness.Lab
	control string // the file that the plugin failcni obeys
	daemon  *harness.Daemon
	client  *harness.Client
	cost    map[string]time.Duration
	made    int
}

// pod is one that stands.
type pod struct {
	config *cri.PodSandboxConfig
	id     string
	ctrs   []string
}

// measure does all of one runtime.
func (s *side) measure(ctx context.Context, o options) (err error) {
	if s.daemon, err = s.make(harness.Options{LogLevel: "info", Extra: s.extra}); err != nil {
		return err
	}
	if err := s.daemon.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.daemon.Stop()) }()
	if s.client, err = harness.Dial(s.daemon.Socket); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.client.Close()) }()
	if _, err := s.client.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: images.Busybox}}); err != nil {
		return err
	}
	pods, err := s.fill(ctx, o)
	if err != nil {
		return err
	}
	fmt.Printf("\n### %s (ms)\n\n| | p50 | p99 | max | with frozen ones: p50 | p99 | max | CPU of the daemon |\n|---|--:|--:|--:|--:|--:|--:|--:|\n", s.name)
	if err := s.price(ctx, pods); err != nil {
		return err
	}
	before, err := s.readings(ctx, o, pods)
	if err != nil {
		return err
	}
	f, err := s.freeze(ctx, pods)
	if err != nil {
		return err
	}
	after, err := s.readings(ctx, o, pods)
	if err != nil {
		return err
	}
	slow := s.table(before, after)
	removal, err := s.removals(ctx, f)
	for _, p := range pods {
		err = errors.Join(err, s.remove(ctx, p.id))
	}
	return errors.Join(slow, removal, err)
}

// fill makes the pods that stand.
func (s *side) fill(ctx context.Context, o options) ([]*pod, error) {
	pods := make([]*pod, o.pods)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range pods {
		pods[i] = s.newPod()
		g.Go(func() error { return s.run(ctx, pods[i], "", o.containers) })
	}
	return pods, g.Wait()
}

func (s *side) newPod() *pod {
	s.made++
	name := fmt.Sprintf("pod-%d", s.made)
	return &pod{config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "bench"}, Hostname: name,
		LogDirectory: filepath.Join(s.lab.Dir, s.name+".logs", name),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    filepath.Join(s.lab.CgroupParent, "pod-"+name), // one of its own, as kubelet has it
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces()},
		},
	}}
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

// run runs a pod with containers.
func (s *side) run(ctx context.Context, p *pod, handler string, containers int) error {
	r, err := s.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config, RuntimeHandler: handler})
	if err != nil {
		return err
	}
	p.id = r.GetPodSandboxId()
	for i := range containers {
		id, err := s.create(ctx, p, fmt.Sprintf("c%d", i))
		if err != nil {
			return err
		}
		if _, err := s.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id}); err != nil {
			return err
		}
		p.ctrs = append(p.ctrs, id)
	}
	return nil
}

func (s *side) create(ctx context.Context, p *pod, name string, envs ...*cri.KeyValue) (string, error) {
	c, err := s.client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: name}, LogPath: name + ".log", Envs: envs,
			Image:   &cri.ImageSpec{Image: images.Busybox, UserSpecifiedImage: images.Busybox},
			Command: []string{"sleep", "100000"},
			Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces()}},
		},
	})
	return c.GetContainerId(), err
}

// remove stops and removes a pod as kubelet does.
func (s *side) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, endless)
	defer cancel()
	if _, err := s.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	if _, err := s.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

// lives lets pods start and stop until ctx ends, and says how long each life took.
func (s *side) lives(ctx context.Context) (took []time.Duration, err error) {
	for ctx.Err() == nil {
		p, start := s.newPod(), time.Now()
		all, cancel := context.WithTimeout(context.WithoutCancel(ctx), endless)
		err := s.run(all, p, "", 1)
		if err == nil {
			err = s.remove(all, p.id)
		}
		cancel()
		if err != nil {
			return took, fmt.Errorf("another pod: %w", err)
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	const hundred = 100
	return d[min(len(d)*p/hundred, len(d)-1)]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d.Microseconds())/1e3) }

// obeyNothing lets the plugin do its work again.
func (s *side) obeyNothing() error {
	err := os.Remove(s.control)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
