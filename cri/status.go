// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

const (
	runtimeName = "sandflow"
	apiVersion  = "v1"
	// kubeletAPIVersion is the version of the client protocol that Version has
	// answered since the beginning of the CRI.
	kubeletAPIVersion = "0.1.0"
)

// Version names the runtime.
func (s *Server) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{
		Version: kubeletAPIVersion, RuntimeName: runtimeName,
		RuntimeVersion: s.version, RuntimeApiVersion: apiVersion,
	}, nil
}

// Status tells whether pods can be run and networked, and if not why.
func (s *Server) Status(ctx context.Context, r *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	network := s.services.CNI.Status(ctx)
	ready := &runtime.RuntimeCondition{Type: runtime.RuntimeReady, Status: true}
	if err := s.runtimeReady(ctx); err != nil {
		ready = &runtime.RuntimeCondition{Type: runtime.RuntimeReady, Reason: "RuntimeNotReady", Message: err.Error()}
	}
	answer := &runtime.StatusResponse{
		Status: &runtime.RuntimeStatus{Conditions: []*runtime.RuntimeCondition{ready, {
			Type: runtime.NetworkReady, Status: network.Ready, Reason: network.Reason, Message: network.Message,
		}, s.features.safe()}},
		RuntimeHandlers: s.features.handlers(),
		Features:        &runtime.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	if r.GetVerbose() {
		info, err := s.statusInfo(ctx, network)
		if err != nil {
			return nil, fmt.Errorf("verbose status: %w", err)
		}
		answer.Info = info
	}
	return answer, nil
}

// runtimeReady tells why no container could be run.
func (s *Server) runtimeReady(ctx context.Context) error {
	if err := s.services.Store.Healthy(ctx); err != nil {
		return fmt.Errorf("containerd: %w", err)
	}
	rt, _ := s.config.RuntimeFor("")
	if rt.Binary == "" {
		return nil
	}
	if _, err := exec.LookPath(rt.Binary); err != nil {
		return fmt.Errorf("OCI runtime of the default handler %q: %w", s.config.DefaultRuntime, err)
	}
	return nil
}

// statusInfo is what operators see with crictl info.
func (s *Server) statusInfo(ctx context.Context, network any) (map[string]string, error) {
	info := map[string]string{}
	for key, value := range map[string]any{
		"config": s.shown, "flows": s.engine.Flows(), "network": network,
		"warnings": slices.Concat(s.features.warnings(), s.cuts.warnings(ctx)), "podCIDR": s.podCIDR.get(),
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
		info[key] = string(text)
	}
	return info, nil
}

// RuntimeConfig tells kubelet the cgroup driver in use.
func (s *Server) RuntimeConfig(context.Context, *runtime.RuntimeConfigRequest) (*runtime.RuntimeConfigResponse, error) {
	driver := runtime.CgroupDriver_CGROUPFS
	if s.config.CgroupDriver == "systemd" {
		driver = runtime.CgroupDriver_SYSTEMD
	}
	return &runtime.RuntimeConfigResponse{Linux: &runtime.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig is told the node's pod CIDRs. Pods get their addresses
// from the CNI configuration, so it is kept for the verbose Status only.
func (s *Server) UpdateRuntimeConfig(ctx context.Context, r *runtime.UpdateRuntimeConfigRequest) (*runtime.UpdateRuntimeConfigResponse, error) {
	cidrs := r.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if cidrs == "" {
		return &runtime.UpdateRuntimeConfigResponse{}, nil
	}
	for cidr := range strings.SplitSeq(cidrs, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(cidr)); err != nil {
			return nil, fmt.Errorf("update runtime config: %w", invalid("network_config.pod_cidr: %v", err))
		}
	}
	s.podCIDR.set(cidrs)
	klog.FromContext(ctx).Info("Told the pod CIDR", "cidr", cidrs)
	return &runtime.UpdateRuntimeConfigResponse{}, nil
}

func (s *Server) handlerNames() string {
	return strings.Join(slices.Sorted(maps.Keys(s.config.Runtimes)), ", ")
}
