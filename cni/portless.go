// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// portless freezes a list for pods that want no host ports: without portmap. That plugin
// has nothing to do for them, and costs about as much as making the interface.
func portless(list *libcni.NetworkConfigList) ([]byte, error) {
	less := *list
	less.Plugins = slices.DeleteFunc(slices.Clone(list.Plugins), portsOnly)
	if len(less.Plugins) == 0 || len(less.Plugins) == len(list.Plugins) {
		return list.Bytes, nil
	}
	if err := freeze(&less); err != nil {
		return nil, err
	}
	return less.Bytes, nil
}

// portsOnly tells whether a plugin maps the ports that it is given by the runtime, and does
// nothing else. One with ports written into its configuration maps these for every pod.
func portsOnly(p *libcni.PluginConfig) bool {
	if p.Network.Type != "portmap" || !p.Network.Capabilities["portMappings"] {
		return false
	}
	var fixed struct {
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	}
	return json.Unmarshal(p.Bytes, &fixed) == nil && fixed.RuntimeConfig == nil
}
