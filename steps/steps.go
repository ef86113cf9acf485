// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package steps holds what the actions of the pod and container ladders share:
// the typed slots through which they pass values, the services they stand on,
// and the plugin type they register as. The actions themselves are in the
// packages below it, one each.
package steps

import (
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

const (
	// ActionPlugin is the type of every action in containerd's plugin registry.
	// The plugin's ID is the name used in the configuration's steps. Its InitFn
	// gets the services with ServicesOf and returns an engine.Action.
	ActionPlugin plugin.Type = "io.sandflow.action.v1"
	// ServicesPlugin is the type of the one plugin that carries *Services.
	ServicesPlugin plugin.Type = "io.sandflow.services.v1"
)

// Names of the workflows, their flows and stations.
const (
	Sandbox   = "sandbox"
	Container = "container"

	Create  = "create"
	Destroy = "destroy"
	Cleanup = "cleanup"
	Start   = "start"
	Stop    = "stop"
	Remove  = "remove"

	Ground   = ""
	Reserved = "reserved"
	Ready    = "ready"
	Created  = "created"
	Running  = "running"
)

// Services is what actions stand on.
type Services struct {
	Config Config
	Store  *snapshot.Store
	CNI    *cni.Network
	// Runtime launches shims and runs tasks; steps/runtime does not import this package.
	Runtime *runtime.Manager
	// NRI tells plugins what happens; nil does nothing. steps/nri does not import this package.
	NRI *nri.Manager
}

// ServicesOf returns the services inside an action's InitFn.
func ServicesOf(ic *plugin.InitContext) (*Services, error) {
	s, err := ic.GetSingle(ServicesPlugin)
	if err != nil {
		return nil, err
	}
	return s.(*Services), nil
}

// Register makes an action known under the name that the configuration's steps
// use. An action's package calls it in its init.
func Register(name string, action func(*Services) engine.Action) {
	registry.Register(&plugin.Registration{
		Type:     ActionPlugin,
		ID:       name,
		Requires: []plugin.Type{ServicesPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			s, err := ServicesOf(ic)
			if err != nil {
				return nil, err
			}
			return action(s), nil
		},
	})
}
