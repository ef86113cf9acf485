// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/shim"

	// The actions register themselves.
	_ "github.com/sandflow-cri/sandflow/steps/files"
	_ "github.com/sandflow-cri/sandflow/steps/namespaces"
	_ "github.com/sandflow-cri/sandflow/steps/network"
	_ "github.com/sandflow-cri/sandflow/steps/nri/hooks"
	_ "github.com/sandflow-cri/sandflow/steps/rootfs"
	_ "github.com/sandflow-cri/sandflow/steps/sandboxcontainer"
	_ "github.com/sandflow-cri/sandflow/steps/shim"
	_ "github.com/sandflow-cri/sandflow/steps/spec"
	_ "github.com/sandflow-cri/sandflow/steps/task"
	_ "github.com/sandflow-cri/sandflow/steps/volumes"
)

// actions are the actions among the plugins of a set; those that failed to
// load are told apart from those that do not exist.
type actions struct {
	byName map[string]engine.Action
	failed map[string]error
	names  []string
}

func actionsOf(set *plugin.Set) (actions, error) {
	out := actions{byName: map[string]engine.Action{}, failed: map[string]error{}}
	for _, p := range set.GetAll() {
		if p.Registration.Type != steps.ActionPlugin {
			continue
		}
		name := p.Registration.ID
		instance, err := p.Instance()
		if err != nil {
			out.failed[name] = err
			continue
		}
		a, ok := instance.(engine.Action)
		if !ok {
			return out, fmt.Errorf("plugin %s is a %T, not an action", p.Registration.URI(), instance)
		}
		out.byName[name] = skippable(a)
		out.names = append(out.names, name)
	}
	slices.Sort(out.names)
	return out, nil
}

// Build makes the engine of the configuration from the actions in set. Faults
// of the configuration are *config.Error.
func Build(c *config.Config, set *plugin.Set, journal engine.Journal, observers ...engine.Observer) (*engine.Engine, error) {
	found, err := actionsOf(set)
	if err != nil {
		return nil, err
	}
	flows := c.Engine()
	for name, cause := range found.failed {
		if uses(flows, name) {
			return nil, fmt.Errorf("load action %s: %w", name, cause)
		}
	}
	o := c.EngineOptions()
	o.Journal, o.Observers, o.Known, o.Admit = journal, observers, found.names, shim.Admit
	o.Lookup = func(name string) (engine.Action, bool) {
		a, ok := found.byName[name]
		return a, ok
	}
	e, err := engine.New(o, Definitions(), flows)
	if err != nil {
		return nil, c.Explain(err)
	}
	return e, nil
}

func uses(flows map[string]map[string]engine.FlowConfig, action string) bool {
	for _, w := range flows {
		for _, f := range w {
			for _, step := range f.Steps {
				if slices.Contains(step, action) {
					return true
				}
			}
		}
	}
	return false
}

// Check puts together what the daemon would run, without a containerd, a
// journal or any effect, and says what is wrong with it.
func Check(ctx context.Context, c *config.Config) error {
	if err := checkPlugins(c); err != nil {
		return err
	}
	services, err := dryServices(c)
	if err != nil {
		return err
	}
	set := plugin.NewPluginSet()
	carrier := plugin.Registration{Type: steps.ServicesPlugin, ID: "dry", InitFn: func(*plugin.InitContext) (any, error) {
		return services, nil
	}}
	if err := set.Add(carrier.Init(plugin.NewContext(ctx, set, nil))); err != nil {
		return fmt.Errorf("add the services: %w", err)
	}
	others := func(r *plugin.Registration) bool { return r.Type != steps.ActionPlugin }
	for _, r := range registry.Graph(others) {
		if err := set.Add(r.Init(plugin.NewContext(ctx, set, nil))); err != nil {
			return fmt.Errorf("add action %s: %w", r.ID, err)
		}
	}
	e, err := Build(c, set, nowhere{})
	if err != nil {
		return err
	}
	return e.Close(ctx)
}

func dryServices(c *config.Config) (*steps.Services, error) {
	network, err := cni.New(CNI(c))
	if err != nil {
		return nil, c.Fault("cni", strings.TrimSpace(err.Error()))
	}
	return &steps.Services{Config: Steps(c), CNI: network, Runtime: runtime.NewManager(Runtime(c, nil))}, nil
}

// nowhere is the journal of an engine that is never booted.
type nowhere struct{}

func (nowhere) Load(func(string, []byte) error) error { return nil }
func (nowhere) Write([]engine.Change) error           { return nil }
func (nowhere) Close() error                          { return nil }
