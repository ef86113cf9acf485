// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cmd/internal/assembly"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	taskruntime "github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/world"
)

// node is the node as the admin API looks at it.
type node struct {
	cfg    *config.Config
	launch *launch
	// status is the CRI server's, once there is one.
	status atomic.Pointer[func(context.Context, *runtime.StatusRequest) (*runtime.StatusResponse, error)]
}

// Things implements admin.Node.
func (n *node) Things(ctx context.Context) ([]world.Thing, error) {
	return world.Settled(ctx, n.where())
}

func (n *node) where() world.Where {
	c, store := n.cfg, assembly.Store(n.cfg)
	w := world.Where{
		State: c.State, Root: c.Root, ContainerdState: store.State, ContainerdRoot: store.Root,
		Shim: c.Runtime.Shim, CgroupParent: filepath.Clean("/" + c.CgroupParent()), ConfDir: c.CNI.ConfDir,
		Client: n.launch.services.Store.Client(), Namespace: c.Containerd.Namespace,
		Snapshotters: []string{c.Containerd.Snapshotter},
		Records:      func() []world.Record { return records(n.launch.engine) },
	}
	for _, h := range c.Runtime.Handlers {
		if h.Snapshotter != "" && !slices.Contains(w.Snapshotters, h.Snapshotter) {
			w.Snapshotters = append(w.Snapshotters, h.Snapshotter)
		}
	}
	return w
}

func records(e *engine.Engine) []world.Record {
	var out []world.Record
	for _, v := range e.List(steps.Sandbox) {
		request, _, _ := steps.PodRequest.Get(v) // a damaged one names no parent
		out = append(out, world.Record{
			Workflow: steps.Sandbox, ID: v.ID, Name: v.Name, Parent: request.Config.M.GetLinux().GetCgroupParent(),
			Reserved: v.Phase == engine.Standing && v.Station == engine.Reserved && !v.Damaged,
		})
	}
	for _, v := range e.List(steps.Container) {
		out = append(out, world.Record{Workflow: steps.Container, ID: v.ID, Name: v.Name})
	}
	return out
}

var errStarting = errors.New("the daemon is still taking up what the last run left")

// unwellAtOnce is how many shims are asked side by side.
const unwellAtOnce = 16

// Unwell implements admin.Node.
func (n *node) Unwell(ctx context.Context) map[string]string {
	var mu sync.Mutex
	out := map[string]string{}
	var g errgroup.Group
	g.SetLimit(unwellAtOnce)
	for _, v := range n.launch.engine.List(steps.Sandbox) {
		if v.Phase != engine.Standing || v.Station != steps.Ready {
			continue
		}
		g.Go(func() error {
			if why := n.unwell(ctx, v); why != "" {
				mu.Lock()
				defer mu.Unlock()
				out[v.ID] = why
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	return out
}

func (n *node) unwell(ctx context.Context, v *engine.View) string {
	if lost, _, err := steps.PodLost.Get(v); err != nil || lost {
		return "its shim is gone"
	}
	request, _, err := steps.PodRequest.Get(v)
	shim, _, serr := steps.PodShim.Get(v)
	if err = errors.Join(err, serr); err != nil {
		return err.Error()
	}
	err = n.launch.services.Runtime.Answers(ctx, taskruntime.Pod{ID: v.ID, Handler: request.Handler, Address: shim.Address})
	if err != nil && ctx.Err() == nil {
		return err.Error()
	}
	return ""
}

// Conditions implements admin.Node.
func (n *node) Conditions(ctx context.Context) ([]*runtime.RuntimeCondition, error) {
	status := n.status.Load()
	if status == nil {
		return nil, errStarting
	}
	r, err := (*status)(ctx, &runtime.StatusRequest{})
	return r.GetStatus().GetConditions(), err
}
