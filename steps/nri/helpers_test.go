// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/sandflow-cri/sandflow/steps/nri"
)

// patience is how long what must happen may take on a busy machine.
const patience = 30 * time.Second

// node is the fake of a runtime: what exists, and what plugins did to it.
type node struct {
	mu       sync.Mutex
	existing nri.Existing
	updated  []string
	evicted  []string
	refuse   error
}

func (n *node) Existing() nri.Existing { return n.existing }

func (n *node) Pod(id string) *api.PodSandbox { return &api.PodSandbox{Id: id, Name: "pod-" + id} }

func (n *node) Container(id string) *api.Container {
	return &api.Container{Id: id, PodSandboxId: "p", Name: "ctr-" + id}
}

func (n *node) Update(_ context.Context, u *api.ContainerUpdate) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.updated = append(n.updated, fmt.Sprintf("%s %d", u.GetContainerId(), u.GetLinux().GetResources().GetCpu().GetShares().GetValue()))
	return n.refuse
}

func (n *node) Evict(_ context.Context, id, reason string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.evicted = append(n.evicted, id+" "+reason)
	return nil
}

func (n *node) did(list *[]string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(*list)
}

// config is a manager's of its own.
func config(t *testing.T) nri.Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return nri.Config{
		Enable: true, SocketPath: filepath.Join(dir, "nri.sock"),
		PluginPath: filepath.Join(dir, "plugins"), PluginConfigPath: filepath.Join(dir, "conf.d"),
		RegistrationTimeout: 5 * time.Second, RequestTimeout: 10 * time.Second, SyncTimeout: 20 * time.Second,
		Name: "sandflow", Version: "test",
	}
}

func start(t *testing.T, c nri.Config, n *node) *nri.Manager {
	t.Helper()
	m := nri.New(c)
	if err := m.Start(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	return m
}

// plugin is a real plugin on the real socket that notes what it is told.
type plugin struct {
	name string
	stub stub.Stub

	mu     sync.Mutex
	events []string
	synced []string

	// What it does at an event, if set.
	onSync   func()
	onRun    func(context.Context) error
	onCreate func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	onStart  func() error
	onUpdate func(*api.LinuxResources) []*api.ContainerUpdate
	onStop   func() []*api.ContainerUpdate
	validate func(*api.ValidateContainerAdjustmentRequest) error
}

func (p *plugin) note(event, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event+" "+id)
}

func (p *plugin) told() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	for _, x := range pods {
		p.synced = append(p.synced, "pod "+x.GetId())
	}
	for _, x := range containers {
		p.synced = append(p.synced, "container "+x.GetId())
	}
	p.mu.Unlock()
	if p.onSync != nil {
		p.onSync()
	}
	return nil, nil
}

func (p *plugin) RunPodSandbox(ctx context.Context, x *api.PodSandbox) error {
	p.note("RunPodSandbox", x.GetId())
	if p.onRun != nil {
		return p.onRun(ctx)
	}
	return nil
}

func (p *plugin) UpdatePodSandbox(_ context.Context, x *api.PodSandbox, _, _ *api.LinuxResources) error {
	p.note("UpdatePodSandbox", x.GetId())
	return nil
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("PostUpdatePodSandbox", x.GetId())
	return nil
}

func (p *plugin) StopPodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("StopPodSandbox", x.GetId())
	return nil
}

func (p *plugin) RemovePodSandbox(_ context.Context, x *api.PodSandbox) error {
	p.note("RemovePodSandbox", x.GetId())
	return nil
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("CreateContainer", x.GetId())
	if p.onCreate != nil {
		return p.onCreate(x)
	}
	return nil, nil, nil
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	p.note("PostCreateContainer", x.GetId())
	return nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	p.note("StartContainer", x.GetId())
	if p.onStart != nil {
		return p.onStart()
	}
	return nil
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	p.note("PostStartContainer", x.GetId())
	return nil
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	p.note("UpdateContainer", x.GetId())
	if p.onUpdate != nil {
		return p.onUpdate(r), nil
	}
	return nil, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	p.note("PostUpdateContainer", x.GetId())
	return nil
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) ([]*api.ContainerUpdate, error) {
	p.note("StopContainer", x.GetId())
	if p.onStop != nil {
		return p.onStop(), nil
	}
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	p.note("RemoveContainer", x.GetId())
	return nil
}

// validating is a plugin that looks at what others want.
type validating struct{ *plugin }

func (v validating) ValidateContainerAdjustment(_ context.Context, r *api.ValidateContainerAdjustmentRequest) error {
	return v.validate(r)
}

// join connects a plugin and waits until it is synchronized.
func join(t *testing.T, c nri.Config, index string, p *plugin) *plugin {
	t.Helper()
	if err := connect(t, c, index, p); err != nil {
		t.Fatal(err)
	}
	return p
}

func connect(t *testing.T, c nri.Config, index string, p *plugin) error {
	t.Helper()
	if p.name == "" {
		p.name = "test"
	}
	var impl any = p
	if p.validate != nil {
		impl = validating{p}
	}
	synced := make(chan struct{})
	var once sync.Once
	before := p.onSync
	p.onSync = func() {
		if before != nil {
			before()
		}
		once.Do(func() { close(synced) })
	}
	s, err := stub.New(impl, stub.WithPluginName(p.name), stub.WithPluginIdx(index), stub.WithSocketPath(c.SocketPath), stub.WithOnClose(func() {}))
	if err != nil {
		return err
	}
	p.stub = s
	if err := s.Start(t.Context()); err != nil {
		return err
	}
	t.Cleanup(s.Stop)
	select {
	case <-synced:
		return nil
	case <-time.After(patience):
		return errors.New("the plugin has not been synchronized")
	}
}

// eventually waits for what happens behind.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatal("has not happened: " + what)
}

func want(t *testing.T, got []string, events ...string) {
	t.Helper()
	if !slices.Equal(got, events) {
		t.Errorf("told\n  %q\nwant\n  %q", got, events)
	}
}

func shares(id string, n uint64) *api.ContainerUpdate {
	return &api.ContainerUpdate{ContainerId: id, Linux: &api.LinuxContainerUpdate{Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(n)}}}}
}
