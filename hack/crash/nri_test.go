// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// watcher is an NRI plugin that notes whom it was told of and not told the end of, and ends
// that it is told of too late: when what it may want to look at is gone.
type watcher struct {
	state string

	mu   sync.Mutex
	open map[string]bool
	late []string
}

// watch connects a plugin. It must be closed before the daemon is restarted.
func (n *node) watch() (*watcher, func()) {
	n.t.Helper()
	w := &watcher{state: n.daemon.State, open: map[string]bool{}}
	s, err := stub.New(w, stub.WithPluginName("watcher"), stub.WithPluginIdx("10"),
		stub.WithSocketPath(n.daemon.NRI), stub.WithOnClose(func() {}))
	must(n.t, err)
	must(n.t, s.Start(n.t.Context()))
	return w, s.Stop
}

// findings tells what is not as it should be.
func (w *watcher) findings() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(w.late)
	for _, what := range slices.Sorted(maps.Keys(w.open)) {
		out = append(out, "not told the end of a "+what)
	}
	return strings.Join(out, ", ")
}

func (w *watcher) begin(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[kind] = true
}

func (w *watcher) end(kind, path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, kind)
	if _, err := os.Stat(path); path != "" && err != nil {
		w.late = append(w.late, fmt.Sprintf("told too late of the end of a %s", kind))
	}
}

// The methods that the NRI calls.

func (w *watcher) RunPodSandbox(context.Context, *api.PodSandbox) error {
	w.begin("pod")
	return nil
}

func (w *watcher) StopPodSandbox(_ context.Context, p *api.PodSandbox) error {
	w.end("pod", filepath.Join(w.state, "pods", p.GetId(), "ns", "net"))
	return nil
}

func (w *watcher) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	w.begin("container")
	return nil, nil, nil
}

func (w *watcher) StartContainer(context.Context, *api.PodSandbox, *api.Container) error {
	w.begin("run")
	return nil
}

func (w *watcher) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	w.end("run", "")
	return nil, nil
}

func (w *watcher) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	w.end("container", filepath.Join(w.state, "containers", c.GetId(), "config.json"))
	return nil
}
