// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/steps"
)

// Annotations of Kubernetes for the bandwidth of a pod, in bits per second.
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// unlimitedBurst in bits is as good as no limit and fits what the bandwidth plugin takes.
const unlimitedBurst = math.MaxInt32

// bounds of a bandwidth as Kubernetes documents them, in bits per second.
const (
	minRate = 1_000
	maxRate = 1_000_000_000_000_000
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
	if a.Bandwidth, err = Bandwidth(cfg.GetAnnotations()); err != nil {
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

// Bandwidth reads the bandwidth annotations; nil if there are none. A value
// that is no quantity of bits per second is an errdefs.ErrInvalidArgument.
func Bandwidth(annotations map[string]string) (*cni.Bandwidth, error) {
	in, err := rate(annotations, ingressAnnotation)
	if err != nil {
		return nil, err
	}
	out, err := rate(annotations, egressAnnotation)
	if err != nil {
		return nil, err
	}
	if in == 0 && out == 0 {
		return nil, nil
	}
	b := &cni.Bandwidth{IngressRate: in, EgressRate: out}
	if in > 0 {
		b.IngressBurst = unlimitedBurst
	}
	if out > 0 {
		b.EgressBurst = unlimitedBurst
	}
	return b, nil
}

func rate(annotations map[string]string, key string) (uint64, error) {
	text, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s=%q: %w: %w", key, text, err, errdefs.ErrInvalidArgument)
	}
	v := q.Value()
	if v < minRate || v > maxRate {
		return 0, fmt.Errorf("annotation %s=%q is not between 1k and 1P bits per second: %w", key, text, errdefs.ErrInvalidArgument)
	}
	return uint64(v), nil
}
