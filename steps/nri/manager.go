// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nri tells NRI plugins what happens to pods and containers and takes
// their answers. It knows what the plugins have been told, each thing once, and
// gives exactly that to a plugin that joins late; what tells it when is the
// actions and the observer in the package hooks below it.
package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/ttrpc"
	"k8s.io/klog/v2"
)

// Config of the plugin interface.
type Config struct {
	// Enable lets plugins in; without it every call here does nothing.
	Enable bool
	// SocketPath is where plugins connect; DisableConnections lets none.
	SocketPath         string
	DisableConnections bool
	// PluginPath holds plugins to launch, named INDEX-NAME; PluginConfigPath
	// their configurations, INDEX-NAME.conf or NAME.conf.
	PluginPath, PluginConfigPath string
	// RegistrationTimeout bounds a plugin's registration, RequestTimeout each
	// request to it, SyncTimeout its taking in of all that exists. One that is
	// late is disconnected.
	RegistrationTimeout, RequestTimeout, SyncTimeout time.Duration
	// Name and Version of the runtime, as plugins see them.
	Name, Version string
}

// Runtime is what plugins look at and change. Its methods do not wait for a
// move of a pod or container.
type Runtime interface {
	// Existing lists what stands now.
	Existing() Existing
	// Pod and Container give nil for what is unknown.
	Pod(id string) *api.PodSandbox
	Container(id string) *api.Container
	// Update changes the limits of a container. errdefs.ErrNotFound and
	// errdefs.ErrFailedPrecondition say that it is gone or has ended.
	Update(ctx context.Context, u *api.ContainerUpdate) error
	// Evict stops a container.
	Evict(ctx context.Context, id, reason string) error
}

// Existing is what stands when the manager starts.
type Existing struct {
	Pods       []ExistingPod
	Containers []ExistingContainer
}

// ExistingPod is a pod; Stopped if it has been.
type ExistingPod struct {
	ID      string
	Stopped bool
}

// ExistingContainer is a container. Started if it runs or has run, Stopped if
// its task has been taken down.
type ExistingContainer struct {
	ID, Pod          string
	Started, Stopped bool
}

// Manager speaks to the plugins. Its nil value is one that is disabled.
//
// Locks: every hook holds the adaptation's plugin-sync block, for reading,
// around the call and the note of what was told, so that a plugin that joins
// (for writing) sees each pod and container in exactly one of the two ways.
// It is never taken twice by one caller. mu guards the maps alone.
type Manager struct {
	cfg     Config
	started atomic.Pointer[session]
	// plugins is how many there are. Under a plugin-sync block it does not grow.
	plugins atomic.Int64
	evicts  sync.WaitGroup

	mu         sync.Mutex
	pods       map[string]*pod
	containers map[string]*container
}

// session is what a started manager has.
type session struct {
	adaptation *adaptation.Adaptation
	runtime    Runtime
	log        klog.Logger // of Start, for what plugins begin
}

// New returns a manager. Nobody is told anything before Start.
func New(c Config) *Manager {
	return &Manager{cfg: c, pods: map[string]*pod{}, containers: map[string]*container{}}
}

// Enabled says whether plugins are let in at all.
func (m *Manager) Enabled() bool { return m != nil && m.cfg.Enable }

// Start takes up what exists, launches the pre-installed plugins, and serves
// the socket. It must come after recovery and before anything new is made.
func (m *Manager) Start(ctx context.Context, r Runtime) error {
	if !m.Enabled() {
		return nil
	}
	setLogger.Do(func() { nrilog.Set(logger{klog.FromContext(ctx).WithName("nri")}) })
	adaptation.SetPluginRegistrationTimeout(m.cfg.RegistrationTimeout)
	adaptation.SetPluginRequestTimeout(m.cfg.RequestTimeout)
	options := []adaptation.Option{
		adaptation.WithPluginPath(m.cfg.PluginPath),
		adaptation.WithPluginConfigPath(m.cfg.PluginConfigPath),
		adaptation.WithSocketPath(m.cfg.SocketPath),
		adaptation.WithMetrics(counter{&m.plugins}),
		adaptation.WithTTRPCOptions(
			[]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(m.toPlugin)},
			[]ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(m.fromPlugin)},
		),
	}
	serves := !m.cfg.DisableConnections && !m.taken(ctx)
	if !serves {
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	a, err := adaptation.New(m.cfg.Name, m.cfg.Version, m.synchronize, m.update, options...)
	if err != nil {
		return fmt.Errorf("set up NRI: %w", err)
	}
	m.started.Store(&session{adaptation: a, runtime: r, log: klog.FromContext(ctx)})
	m.adopt(r)
	if err := a.Start(); err != nil {
		m.started.Store(nil)
		a.Stop()
		return fmt.Errorf("start NRI (plugins in %s, socket %s): %w", m.cfg.PluginPath, m.cfg.SocketPath, err)
	}
	if !serves {
		return nil
	}
	return m.closeDoor()
}

// closeDoor lets only root connect: the library leaves the socket as the umask has it.
func (m *Manager) closeDoor() error {
	if err := os.Chmod(m.cfg.SocketPath, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set the mode of the NRI socket: %w", err)
	}
	return nil
}

// taken says whether another runtime serves the socket. It is not taken away
// from it: a containerd on the same node has plugins of its own.
func (m *Manager) taken(ctx context.Context) bool {
	dialer := net.Dialer{Timeout: time.Second}
	c, err := dialer.DialContext(ctx, "unix", m.cfg.SocketPath)
	if err != nil {
		return false
	}
	_ = c.Close()
	klog.FromContext(ctx).Error(errors.New("another process serves the socket"),
		"NRI plugins cannot connect; set nri.socket_path or nri.disable_connections", "socket", m.cfg.SocketPath)
	return true
}

// Stop ends the launched plugins and lets no new ones in. What happens from
// here on they are told when they join again.
func (m *Manager) Stop() {
	if m == nil {
		return
	}
	if s := m.started.Swap(nil); s != nil {
		s.adaptation.Stop()
	}
	m.evicts.Wait()
}

// adopt notes what a former daemon has made, as if it had been told: plugins
// get it when they synchronize. Retries of stuck descents run already; what is
// gone when it is looked for a second time they have removed unnoticed.
func (m *Manager) adopt(r Runtime) {
	before := r.Existing()
	m.mu.Lock()
	for _, p := range before.Pods {
		m.pods[p.ID] = &pod{brief: briefPod(r.Pod(p.ID), p.ID)}
		if p.Stopped {
			m.pods[p.ID].stopped.finish()
		}
	}
	for _, c := range before.Containers {
		entry := &container{pod: c.Pod, brief: briefContainer(nil, c.ID, c.Pod)}
		entry.started.Store(c.Started)
		if c.Stopped {
			entry.stopped.finish()
		}
		m.containers[c.ID] = entry
	}
	m.mu.Unlock()
	m.forget(before, r.Existing())
}

// forget drops what was there before and is not now.
func (m *Manager) forget(before, now Existing) {
	there := map[string]bool{}
	for _, p := range now.Pods {
		there[p.ID] = true
	}
	for _, c := range now.Containers {
		there[c.ID] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range before.Pods {
		if !there[p.ID] {
			delete(m.pods, p.ID)
		}
	}
	for _, c := range before.Containers {
		if !there[c.ID] {
			delete(m.containers, c.ID)
		}
	}
}

// counter learns the number of plugins, so that nothing is made ready for none.
type counter struct{ n *atomic.Int64 }

func (c counter) UpdatePluginCount(n int) { c.n.Store(int64(n)) }

func (counter) RecordPluginInvocation(string, string, error)                               {}
func (counter) RecordPluginLatency(string, string, time.Duration)                          {}
func (counter) RecordPluginAdjustments(string, string, *api.ContainerAdjustment, int, int) {}

// setLogger: NRI has one logger for the process, and no lock around it.
var setLogger sync.Once

// logger makes NRI's own log ours.
type logger struct{ klog.Logger }

const (
	verbosityInfo  = 2
	verbosityDebug = 5
)

func (l logger) Debugf(_ context.Context, format string, args ...any) {
	l.V(verbosityDebug).Info(fmt.Sprintf(format, args...))
}

func (l logger) Infof(_ context.Context, format string, args ...any) {
	l.V(verbosityInfo).Info(fmt.Sprintf(format, args...))
}

func (l logger) Warnf(_ context.Context, format string, args ...any) {
	l.Info(fmt.Sprintf(format, args...))
}

func (l logger) Errorf(_ context.Context, format string, args ...any) {
	l.Error(fmt.Errorf(format, args...), "NRI")
}
