// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/images"
	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// rig is a server over a real engine whose actions do nothing and whose journal is
// in memory, with a real gRPC connection to it.
type rig struct {
	*Server
	t       *testing.T
	journal *memoryJournal
	fail    sync.Map // of actions, by name: true, or a function that is called instead
	client  criapi.RuntimeServiceClient
	socket  string
	ended   chan string // methods of streams, as their handlers return
}

var errAction = errors.New("the action failed")

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, journal: &memoryJournal{data: map[string][]byte{}}, ended: make(chan string, 100)}
	e, err := engine.New(engine.Options{Journal: r.journal, Lookup: r.action, Known: []string{"make"}}, []engine.Definition{
		{
			Name: steps.Sandbox, Given: []engine.Key{steps.PodRequest.Key()},
			Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Ready}},
			Down: []engine.FlowDef{{Name: steps.Destroy, To: steps.Reserved}, {Name: steps.Cleanup, To: steps.Ground}},
		}, {
			Name: steps.Container, Given: []engine.Key{steps.ContainerRequest.Key()},
			Up:   []engine.FlowDef{{Name: steps.Create, To: steps.Created}, {Name: steps.Start, To: steps.Running}},
			Down: []engine.FlowDef{{Name: steps.Stop, To: steps.Created}, {Name: steps.Remove, To: steps.Ground}},
		},
	}, map[string]map[string]engine.FlowConfig{
		steps.Sandbox:   {steps.Create: {Failover: true, Steps: [][]string{{"pod"}, {"net"}}}},
		steps.Container: {steps.Create: {Failover: true, Steps: [][]string{{"make"}}}, steps.Start: {Failover: true, Steps: [][]string{{"task"}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	host := cgroups.Unified(t.TempDir())
	r.Server = &Server{
		engine: e, services: &steps.Services{}, images: images.New(nil, nil), layers: noLayers{},
		stats: stats.New(stats.Options{Host: &host}), drain: newDrain(),
	}
	r.layerUse = newLayerUse(noLayers{})
	r.monitor = newMonitor(e, nil)
	r.monitor.forget = r.stats.Forget
	r.serve()
	return r
}

func (r *rig) serve() {
	r.t.Helper()
	options, err := interceptors.ServerOptions(interceptors.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	g := grpc.NewServer(append(options, grpc.ChainStreamInterceptor(
		func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			err := next(srv, s)
			r.ended <- filepath.Base(info.FullMethod)
			return err
		}))...)
	r.Register(g)
	r.socket = filepath.Join(r.t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(r.t.Context(), "unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	r.t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			r.t.Error(err)
		}
	})
	r.client = r.dial()
}

// dial makes a connection that takes no more than 64 KiB before it is read.
func (r *rig) dial() criapi.RuntimeServiceClient {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return criapi.NewRuntimeServiceClient(conn)
}

func (r *rig) action(name string) (engine.Action, bool) { return idle{r, name}, true }

type idle struct {
	r    *rig
	name string
}

func (a idle) Do(context.Context, *engine.Run) error {
	switch how, bad := a.r.fail.Load(a.name); how := how.(type) {
	case func() error:
		return how()
	default:
		if bad {
			return errAction
		}
		return nil
	}
}

func (idle) Undo(context.Context, *engine.Run) error { return nil }

// pod makes a ready sandbox.
func (r *rig) pod(id string, config *criapi.PodSandboxConfig) error {
	if config == nil {
		config = &criapi.PodSandboxConfig{}
	}
	if config.GetMetadata() == nil {
		config.Metadata = &criapi.PodSandboxMetadata{Name: "name-" + id, Uid: "uid-" + id, Namespace: "ns"}
	}
	return r.engine.Climb(r.t.Context(), steps.Sandbox, steps.Create, id, engine.ClimbOptions{
		Values: []engine.Value{steps.PodRequest.With(steps.Pod{Config: protoOf(config), Created: time.Now()})},
	})
}

// oneCgroup is that of all containers: thousands of files take long to write.
const oneCgroup = "/pods/one"

// container makes a created container.
func (r *rig) container(pod, id string, labels map[string]string) error {
	request := steps.Ctr{PodID: pod, Created: time.Now(), Config: protoOf(&criapi.ContainerConfig{
		Metadata: &criapi.ContainerMetadata{Name: "name-" + id}, Labels: labels,
		Image: &criapi.ImageSpec{Image: "example.org/app:1"},
	})}
	return r.engine.Climb(r.t.Context(), steps.Container, steps.Create, id, engine.ClimbOptions{Values: []engine.Value{
		steps.ContainerRequest.With(request), steps.ContainerSpec.With(steps.Spec{CgroupPath: oneCgroup}),
	}})
}

func (r *rig) run(id string) error {
	return r.engine.Climb(r.t.Context(), steps.Container, steps.Start, id, engine.ClimbOptions{
		Values: []engine.Value{steps.ContainerTask.With(steps.Task{PID: 1, Started: time.Now()})},
	})
}

// exit is what the monitor does when a process ends.
func (r *rig) exit(id string, code int32) {
	r.monitor.ended(r.t.Context(), id, steps.Exit{Code: code, Reason: "Completed", Started: time.Now(), Finished: time.Now()})
}

func (r *rig) down(workflow, flow, id string) error {
	return r.engine.Descend(r.t.Context(), workflow, flow, id, engine.DescendOptions{})
}

// must is for what cannot fail here.
func (r *rig) must(errs ...error) {
	r.t.Helper()
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
}

// fill makes n pods with one running container each.
func (r *rig) fill(n int) {
	r.t.Helper()
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < n; i += 8 {
				pod, ctr := fmt.Sprintf("pod-%04d", i), fmt.Sprintf("ctr-%04d", i)
				parity := map[string]string{"parity": fmt.Sprint(i % 2)}
				err := errors.Join(r.pod(pod, &criapi.PodSandboxConfig{Labels: parity}), r.container(pod, ctr, parity), r.run(ctr))
				if err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

type noLayers struct{}

func (noLayers) RootfsUsage(context.Context, string) (snapshot.Usage, error) {
	return snapshot.Usage{}, errdefs.ErrNotFound
}

func (noLayers) ImageFS(context.Context) (snapshot.FS, error) {
	return snapshot.FS{Mountpoint: "/"}, nil
}

type memoryJournal struct {
	mu   sync.Mutex
	data map[string][]byte
	full int // the number of writes to come until all fail; 0: none does
}

var errFull = fmt.Errorf("the disk is full: %w", unix.ENOSPC)

// fills makes the writes after the next ones fail; a negative number ends that.
func (m *memoryJournal) fills(after int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = after + 1
}

func (m *memoryJournal) Load(f func(string, []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(m.data)) {
		if err := f(k, m.data[k]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memoryJournal) Write(changes []engine.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full == 1 {
		return errFull
	}
	if m.full > 1 {
		m.full--
	}
	for _, c := range changes {
		if c.Data == nil {
			delete(m.data, c.Key)
		} else {
			m.data[c.Key] = c.Data
		}
	}
	return nil
}

func (m *memoryJournal) Close() error { return nil }
