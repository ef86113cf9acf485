// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

// plugin is a real one: it notes what it is told and what it believes to exist.
type plugin struct {
	mu     sync.Mutex
	events []string
	living map[string]bool
	refuse string // the event that it refuses, with its object
	adjust *api.ContainerAdjustment
	synced chan struct{}
}

func (p *plugin) note(event, prefix, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
	switch {
	case strings.HasPrefix(event, "Run"), strings.HasPrefix(event, "Create"), strings.HasPrefix(event, "Start"):
		p.living[prefix+id] = true
	case strings.HasPrefix(event, "Stop"), strings.HasPrefix(event, "Remove"):
		delete(p.living, prefix+id)
	}
	if p.refuse == event {
		return refusal(event)
	}
	return nil
}

type refusal string

func (r refusal) Error() string { return "refused " + string(r) }

func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.synced)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, x *api.PodSandbox) error {
	return p.note("RunPodSandbox", "pod ", x.GetId())
}

func (p *plugin) StopPodSandbox(_ context.Context, x *api.PodSandbox) error {
	return p.note("StopPodSandbox", "pod ", x.GetId())
}

func (p *plugin) RemovePodSandbox(_ context.Context, x *api.PodSandbox) error {
	return p.note("RemovePodSandbox", "pod ", x.GetId())
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.adjust, nil, p.note("CreateContainer", "container ", x.GetId())
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	return p.note("PostCreateContainer", "", x.GetId())
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	return p.note("StartContainer", "process ", x.GetId())
}

func (p *plugin) PostStartContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	return p.note("PostStartContainer", "", x.GetId())
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("StopContainer", "process ", x.GetId())
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, x *api.Container) error {
	return p.note("RemoveContainer", "container ", x.GetId())
}

func (p *plugin) told() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

func (p *plugin) world() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []string{}
	for what := range p.living {
		out = append(out, what)
	}
	return out
}

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
		RegistrationTimeout: 10 * time.Second, RequestTimeout: 10 * time.Second, SyncTimeout: 20 * time.Second,
		Name: "sandflow", Version: "test",
	}
}

// start starts a manager and joins it with a plugin.
func start(t *testing.T, c nri.Config, m *nri.Manager, r nri.Runtime) *plugin {
	t.Helper()
	if err := m.Start(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	p := &plugin{living: map[string]bool{}, synced: make(chan struct{})}
	s, err := stub.New(p, stub.WithPluginName("test"), stub.WithPluginIdx("10"), stub.WithSocketPath(c.SocketPath), stub.WithOnClose(func() {}))
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	<-p.synced
	return p
}

// bundle writes an OCI spec.
func bundle(t *testing.T, dir string) {
	t.Helper()
	s := &specs.Spec{
		Version: specs.Version, Process: &specs.Process{Args: []string{"sh"}, Env: []string{"PATH=/bin", "GONE=1"}},
		Linux: &specs.Linux{
			CgroupsPath: "/old", Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.UTSNamespace}},
			Devices: []specs.LinuxDevice{{Path: "/dev/gone", Type: "c", Major: 1, Minor: 3}}, Sysctl: map[string]string{"gone": "1"},
		},
		Annotations: map[string]string{"gone": "1", "note": "old"},
		Mounts:      []specs.Mount{{Destination: "/gone", Source: "/tmp", Type: "bind"}},
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), spec.WriteBundle(dir, s)); err != nil {
		t.Fatal(err)
	}
}
