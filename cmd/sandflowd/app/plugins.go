// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/sandflow-cri/sandflow/cmd/internal/assembly"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/nri/hooks"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// The services and the engine are plugins of the same graph as containerd's
// own and the actions: store → services → actions → engine.
const enginePlugin plugin.Type = "io.sandflow.engine.v1"

// IDs of the plugins.
const (
	engineID   = "engine"
	servicesID = "services"
)

// launch is what the plugins are given and what they leave. It travels in the
// context of the graph and not in a variable, so that one process can hold
// several daemons.
type launch struct {
	cfg       *config.Config
	journal   engine.Journal
	observers []engine.Observer

	runtime  *runtime.Manager
	store    atomic.Pointer[snapshot.Store]
	services *steps.Services
	engine   *engine.Engine
	// err is why the engine could not be put together, before anybody wrapped it.
	err error
}

// client is nil until there is a store.
func (l *launch) client() *containerd.Client {
	if s := l.store.Load(); s != nil {
		return s.Client()
	}
	return nil
}

type launchKey struct{}

func launchOf(ic *plugin.InitContext) (*launch, error) {
	l, ok := ic.Context.Value(launchKey{}).(*launch)
	if !ok {
		return nil, fmt.Errorf("only made by the daemon: %w", plugin.ErrSkipPlugin)
	}
	return l, nil
}

func init() {
	registry.Register(&plugin.Registration{
		Type: steps.ServicesPlugin, ID: servicesID, Requires: []plugin.Type{snapshot.StorePlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			l, err := launchOf(ic)
			if err != nil {
				return nil, err
			}
			l.services, l.err = newServices(ic, l)
			return l.services, l.err
		},
	})
	registry.Register(&plugin.Registration{
		Type: enginePlugin, ID: engineID, Requires: []plugin.Type{steps.ServicesPlugin, steps.ActionPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			l, err := launchOf(ic)
			if err != nil || l.err != nil {
				return nil, err
			}
			tell := hooks.NewObserver(l.services.NRI, func(workflow, id string) (*engine.View, bool) {
				return l.engine.Get(workflow, id)
			})
			l.engine, l.err = assembly.Build(l.cfg, ic.Plugins(), l.journal, slices.Concat(l.observers, []engine.Observer{tell}, faultObservers())...)
			return l.engine, l.err
		},
	})
}

func newServices(ic *plugin.InitContext, l *launch) (*steps.Services, error) {
	instance, err := ic.GetSingle(snapshot.StorePlugin)
	if err != nil {
		return nil, err
	}
	store, ok := instance.(*snapshot.Store)
	if !ok {
		return nil, fmt.Errorf("plugin %s is a %T", snapshot.StorePlugin, instance)
	}
	l.store.Store(store)
	network, err := cni.New(assembly.CNI(l.cfg))
	if err != nil {
		return nil, fmt.Errorf("set up pod networks: %w", err)
	}
	return &steps.Services{
		Config: assembly.Steps(l.cfg), Store: store, CNI: network,
		Runtime: l.runtime, NRI: nri.New(assembly.NRI(l.cfg)),
	}, nil
}

// startGraph starts containerd, or connects to it, with our plugins.
func startGraph(ctx context.Context, l *launch) (*snapshot.Store, error) {
	c := assembly.Store(l.cfg)
	c.RequiredPlugins = []string{string(enginePlugin) + "." + engineID}
	l.runtime = runtime.NewManager(assembly.Runtime(l.cfg, l.client))
	if c.Address == "" {
		l.runtime.Settle(ctx, c.State)
	}
	store, err := snapshot.Start(context.WithValue(ctx, launchKey{}, l), c)
	switch {
	case l.err != nil: // the cause, without the graph around it
		if err == nil {
			_ = store.Close() //nolint:contextcheck // it takes none
		}
		return nil, l.err
	case err != nil:
		return nil, fmt.Errorf("start the image store: %w", err)
	case l.engine == nil:
		_ = store.Close() //nolint:contextcheck // it takes none
		return nil, fmt.Errorf("start the image store: plugin %s was not loaded", enginePlugin)
	}
	return store, nil
}
