// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/stdio"
)

// foreign keeps the streams of containers of foreign runtimes: their shims
// write into FIFOs in the bundle, which the daemon reads. They are opened again
// after a restart of the daemon, when the container is first waited for.
type foreign struct {
	m      *Manager
	ctx    context.Context //nolint:containedctx // ends with the manager
	cancel context.CancelFunc

	mu   sync.Mutex
	hubs map[string]*stdio.Hub
	held map[string]func() // let go of the FIFOs of containers that are yet to be restored
}

// foreignRecord is what must be known of a container after a restart.
type foreignRecord struct {
	Terminal  bool   `json:"terminal,omitempty"`
	Stdin     bool   `json:"stdin,omitempty"`
	StdinOnce bool   `json:"stdinOnce,omitempty"`
	LogPath   string `json:"logPath,omitempty"`
	LogDir    string `json:"logDir,omitempty"`
	// Ended is set when the creation has ended, well or not.
	Ended bool `json:"ended,omitempty"`
	// Memory is the directory of its memory cgroup.
	Memory string `json:"memory,omitempty"`
}

func newForeign(m *Manager) *foreign {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // ends in close
	return &foreign{m: m, ctx: ctx, cancel: cancel, hubs: map[string]*stdio.Hub{}, held: map[string]func(){}}
}

// close lets go of all streams; the containers run on.
func (f *foreign) close() {
	f.cancel()
	f.mu.Lock()
	hubs, held := f.hubs, f.held
	f.hubs, f.held = map[string]*stdio.Hub{}, map[string]func(){}
	f.mu.Unlock()
	for _, release := range held {
		release()
	}
	for _, h := range hubs {
		_ = h.Abandon() // a log that cannot be closed has told so before
	}
}

// client gives containerd's client and a context with its namespace.
func (f *foreign) client(ctx context.Context) (*containerd.Client, context.Context, error) {
	if f.m.cfg.Client == nil || f.m.cfg.Client() == nil {
		return nil, nil, fmt.Errorf("containerd is not there: %w", errdefs.ErrUnavailable)
	}
	return f.m.cfg.Client(), namespaces.WithNamespace(ctx, f.m.cfg.Namespace), nil
}

// task gives the container's task.
func (f *foreign) task(ctx context.Context, id string) (containerd.Task, context.Context, error) {
	client, ctx, err := f.client(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := client.LoadContainer(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	t, err := c.Task(ctx, nil)
	return t, ctx, err
}

// askAgain is how long after containerd could not tell of a task it is asked again.
const askAgain = 500 * time.Millisecond

// alive is closed when the pod's sandbox container has ended, or its shim is gone. A pod
// without one has nothing that could be watched.
func (f *foreign) alive(p Pod) <-chan struct{} {
	gone := make(chan struct{})
	if !exists(f.m.cfg.SandboxBundle(p.ID)) {
		return gone
	}
	go func() {
		for f.ctx.Err() == nil {
			if f.sandboxEnded(p.ID) {
				close(gone)
				return
			}
			select {
			case <-f.ctx.Done():
			case <-time.After(askAgain):
			}
		}
	}()
	return gone
}

// sandboxEnded waits for the end of a pod's sandbox container. It gives false if containerd
// cannot tell: it may be away, or not done yet with a shim that died.
func (f *foreign) sandboxEnded(id string) bool {
	t, ctx, err := f.task(f.ctx, id)
	if err == nil {
		var status <-chan containerd.ExitStatus
		if status, err = t.Wait(ctx); err == nil {
			s := <-status
			err = s.Error()
		}
	}
	return err == nil || errdefs.IsNotFound(err)
}

// The FIFOs in a bundle.
var fifoNames = struct{ dir, stdin, stdout, stderr string }{"io", "0", "1", "2"}

func fifoPath(dir, name string) string { return filepath.Join(dir, fifoNames.dir, name) }

// makeFIFOs makes those that the container needs.
func makeFIFOs(dir string, r foreignRecord) error {
	if err := os.MkdirAll(filepath.Join(dir, fifoNames.dir), 0o700); err != nil {
		return err
	}
	names := []string{fifoNames.stdout}
	if r.Stdin {
		names = append(names, fifoNames.stdin)
	}
	if !r.Terminal {
		names = append(names, fifoNames.stderr)
	}
	for _, n := range names {
		if err := unix.Mkfifo(fifoPath(dir, n), 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make FIFO: %w", err)
		}
	}
	return nil
}

// fifoIO tells containerd's client the FIFOs; the hub reads them.
type fifoIO struct {
	dir string
	r   foreignRecord
}

func (f fifoIO) creator(string) (cio.IO, error) { return f, nil }

func (f fifoIO) Config() cio.Config {
	c := cio.Config{Terminal: f.r.Terminal, Stdout: fifoPath(f.dir, fifoNames.stdout)}
	if f.r.Stdin {
		c.Stdin = fifoPath(f.dir, fifoNames.stdin)
	}
	if !f.r.Terminal {
		c.Stderr = fifoPath(f.dir, fifoNames.stderr)
	}
	return c
}

func (fifoIO) Cancel()      {}
func (fifoIO) Wait()        {}
func (fifoIO) Close() error { return nil }

// hub gives the container's hub, opening it if this daemon has not yet.
func (f *foreign) hub(ctx context.Context, id string) (*stdio.Hub, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.hubs[id]; h != nil {
		return h, nil
	}
	dir := f.m.bundle(id)
	var r foreignRecord
	if err := bundle.ReadForeign(dir, &r); err != nil {
		return nil, fmt.Errorf("streams of container %s: %w", id, err)
	}
	h, err := f.openHub(ctx, id, dir, r)
	if err != nil {
		return nil, fmt.Errorf("streams of container %s: %w", id, err)
	}
	f.hubs[id] = h
	return h, nil
}

func (f *foreign) openHub(ctx context.Context, id, dir string, r foreignRecord) (*stdio.Hub, error) {
	o := stdio.Options{
		LogPath: r.LogPath, LogDir: r.LogDir, MaxLine: f.m.cfg.MaxLogLine, StdinOnce: r.StdinOnce && !r.Terminal,
		OnLogError:   func(err error) { klog.FromContext(ctx).Error(err, "Container log", "container", id) },
		OnStdinClose: func() { f.closeStdin(id) }, //nolint:contextcheck // long after ctx
	}
	var opened []*os.File
	open := func(name string, flag int) (*os.File, error) {
		file, err := os.OpenFile(fifoPath(dir, name), flag|unix.O_NONBLOCK, 0)
		if err == nil {
			opened = append(opened, file)
		}
		return file, err
	}
	stdout, err := open(fifoNames.stdout, os.O_RDONLY)
	var stderr *os.File
	if err == nil && !r.Terminal {
		stderr, err = open(fifoNames.stderr, os.O_RDONLY)
	}
	if err == nil && r.Stdin { // opened for both, since nobody may be reading yet
		o.Stdin, err = open(fifoNames.stdin, os.O_RDWR)
	}
	var h *stdio.Hub
	if err == nil {
		h, err = stdio.New(o)
	}
	if err != nil {
		for _, file := range opened {
			_ = file.Close()
		}
		return nil, err
	}
	if stderr == nil {
		h.Start(stdout, nil)
	} else {
		h.Start(stdout, stderr)
	}
	return h, nil
}

// closeStdin closes the shim's end of the container's stdin; it keeps one of its own.
func (f *foreign) closeStdin(id string) {
	t, ctx, err := f.task(f.ctx, id)
	if err == nil {
		_ = t.CloseIO(ctx, containerd.WithStdinCloser) // the container may be gone
	}
}

// forget closes the container's hub.
func (f *foreign) forget(id string) {
	f.mu.Lock()
	h := f.hubs[id]
	delete(f.hubs, id)
	f.mu.Unlock()
	f.letGo(id)
	if h != nil {
		_ = h.Close() // a log that cannot be closed has told so before
	}
}

// hold keeps FIFOs open until letGo: those of a container that is restored from a dump
// are opened by its shim when it is started.
func (f *foreign) hold(id string, release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[id] = release
}

// letGo tells whether there was something to let go.
func (f *foreign) letGo(id string) bool {
	f.mu.Lock()
	release := f.held[id]
	delete(f.held, id)
	f.mu.Unlock()
	if release != nil {
		release()
	}
	return release != nil
}

// keepFIFOsOpen holds the writing ends until the shim has its own, so that
// the readers do not see the end before the beginning.
func keepFIFOsOpen(dir string, r foreignRecord) (release func(), err error) {
	var files []*os.File
	release = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	names := []string{fifoNames.stdout}
	if !r.Terminal {
		names = append(names, fifoNames.stderr)
	}
	for _, n := range names {
		f, err := os.OpenFile(fifoPath(dir, n), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			release()
			return nil, err
		}
		files = append(files, f)
	}
	return release, nil
}
