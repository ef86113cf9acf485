// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"path/filepath"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

// attachment says what the plugins are to be told of a pod.
func attachment(c steps.Config, id string, cfg *runtime.PodSandboxConfig, ns steps.Namespaces) (cni.Attachment, error) {
	meta := cfg.GetMetadata()
	a := cni.Attachment{
		ID: id, NetNS: ns.Net,
		PodName: meta.GetName(), PodNamespace: meta.GetNamespace(), PodUID: meta.GetUid(),
		PortMappings: portMappings(cfg),
		DNS:          dns(cfg),
		CgroupPath:   cgroupPath(c, cfg),
		Annotations:  cfg.GetAnnotations(),
	}
	var err error
	if a.Bandwidth, err = pod.Bandwidth(cfg); err != nil {
		return a, fmt.Errorf("attach %s: %w", a, err)
	}
	return a, nil
}

// portMappings leaves out entries without a host port: they ask for nothing.
func portMappings(cfg *runtime.PodSandboxConfig) []cni.PortMapping {
	var list []cni.PortMapping
	for _, p := range cfg.GetPortMappings() {
		if p.GetHostPort() <= 0 {
			continue
		}
		list = append(list, cni.PortMapping{
			HostPort:      p.GetHostPort(),
			ContainerPort: p.GetContainerPort(),
			Protocol:      strings.ToLower(p.GetProtocol().String()),
			HostIP:        p.GetHostIp(),
		})
	}
	return list
}

func dns(cfg *runtime.PodSandboxConfig) *cni.DNS {
	d := cfg.GetDnsConfig()
	if len(d.GetServers())+len(d.GetSearches())+len(d.GetOptions()) == 0 {
		return nil
	}
	return &cni.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
}

func cgroupPath(c steps.Config, cfg *runtime.PodSandboxConfig) string {
	if parent := cfg.GetLinux().GetCgroupParent(); parent != "" {
		return parent
	}
	if c.DefaultCgroupParent == "" {
		return ""
	}
	return filepath.Clean(c.DefaultCgroupParent)
}
