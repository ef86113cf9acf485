// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandflow-cri/sandflow/steps"
)

// podInfo is the verbose part of PodSandboxStatus: what crictl inspectp shows.
func (s *Server) podInfo(p pod) (map[string]string, error) {
	// Shown as far as it is readable.
	ns, _, _ := steps.PodNamespaces.Get(p.View)
	net, _, _ := steps.PodNetwork.Get(p.View)
	shim, _, _ := steps.PodShim.Get(p.View)
	return asInfo(map[string]any{
		"pid": shim.PID, "config": protoOf(p.config), "runtimeHandler": p.request.Handler,
		"station": p.Station, "phase": p.Phase, "error": p.Error, "attempts": p.Attempts,
		"resources": protoOf(p.resources()), "overhead": protoOf(p.overhead()), "namespaces": ns, "cniResult": net.Results, "shim": shim,
	})
}

// containerInfo is the verbose part of ContainerStatus: what crictl inspect shows.
func (s *Server) containerInfo(c container) (map[string]string, error) {
	info := map[string]any{
		"sandboxID": c.request.PodID, "pid": c.pid(), "config": protoOf(c.config),
		"station": c.Station, "phase": c.Phase, "error": c.Error,
	}
	if spec, err := os.ReadFile(filepath.Join(s.config.ContainerDir(c.ID), "config.json")); err == nil {
		info["runtimeSpec"] = json.RawMessage(spec)
	}
	return asInfo(info)
}

func asInfo(v any) (map[string]string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the verbose info: %w", err)
	}
	return map[string]string{"info": string(text)}, nil
}
