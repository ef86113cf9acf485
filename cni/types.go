// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
)

// Attachment is one pod's connection to the networks.
type Attachment struct {
	// ID is the pod's sandbox ID: CNI_CONTAINERID.
	ID string
	// NetNS is the path of the pod's pinned network namespace.
	NetNS string

	PodName, PodNamespace, PodUID string

	// Offered to the plugins that declare the capability.
	PortMappings []PortMapping     // portMappings
	Bandwidth    *Bandwidth        // bandwidth
	DNS          *DNS              // dns
	IPRanges     [][]IPRange       // ipRanges
	Aliases      []string          // aliases
	CgroupPath   string            // cgroupPath
	Annotations  map[string]string // io.kubernetes.cri.pod-annotations

	// Saved is what Prepare returned. Detach uses nothing else but ID.
	Saved json.RawMessage
}

// PortMapping is an entry of the portMappings capability.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp, sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// Bandwidth is the bandwidth capability: rates in bits per second, bursts in bits.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// DNS is the dns capability.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// IPRange is one range of a set of the ipRanges capability.
type IPRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

// String names the pod for errors and logs.
func (a Attachment) String() string { return fmt.Sprintf("pod %s (%s)", a.pod(), a.ID) }

func (a Attachment) pod() string { return a.PodNamespace + "/" + a.PodName }

// args are the CNI_ARGS that Kubernetes' plugins expect.
func (a Attachment) args() ([][2]string, error) {
	args := [][2]string{
		{"IgnoreUnknown", "1"}, // plugins that know no K8S_ names must not fail
		{"K8S_POD_NAMESPACE", a.PodNamespace},
		{"K8S_POD_NAME", a.PodName},
		{"K8S_POD_INFRA_CONTAINER_ID", a.ID},
		{"K8S_POD_UID", a.PodUID},
	}
	for _, kv := range args {
		// There is no quoting in CNI_ARGS: a name could smuggle in another argument.
		if strings.ContainsAny(kv[1], ";=\n\x00") {
			return nil, fmt.Errorf("%s %q cannot be passed to network plugins: it contains ';', '=' or a line break: %w", kv[0], kv[1], errdefs.ErrInvalidArgument)
		}
	}
	return args, nil
}

// capabilities are the arguments of which each plugin gets those it declares.
func (a Attachment) capabilities() map[string]any {
	c := map[string]any{}
	if len(a.PortMappings) > 0 {
		c["portMappings"] = a.PortMappings
	}
	if a.Bandwidth != nil {
		c["bandwidth"] = a.Bandwidth
	}
	if a.DNS != nil {
		c["dns"] = a.DNS
	}
	if len(a.IPRanges) > 0 {
		c["ipRanges"] = a.IPRanges
	}
	if len(a.Aliases) > 0 {
		c["aliases"] = a.Aliases
	}
	if a.CgroupPath != "" {
		c["cgroupPath"] = a.CgroupPath
	}
	if len(a.Annotations) > 0 {
		c["io.kubernetes.cri.pod-annotations"] = a.Annotations
	}
	return c
}

// saved is the form of Attachment.Saved.
type saved struct {
	ID           string         `json:"id"`
	Pod          string         `json:"pod"` // namespace/name, for people
	NetNS        string         `json:"netns"`
	Args         [][2]string    `json:"args"`
	Capabilities map[string]any `json:"capabilities,omitempty"`
	Networks     []savedNetwork `json:"networks"`
}

type savedNetwork struct {
	IfName string          `json:"ifName"`
	Config json.RawMessage `json:"config"`
}

func decodeSaved(a Attachment) (saved, error) {
	var s saved
	if err := json.Unmarshal(a.Saved, &s); err != nil {
		return s, fmt.Errorf("decode what pod %s was attached with: %w", a.ID, err)
	}
	if s.ID != a.ID {
		return s, fmt.Errorf("pod %s is not %q, which the saved attachment is of: %w", a.ID, s.ID, errdefs.ErrInvalidArgument)
	}
	return s, nil
}

func (s saved) runtimeConf(w savedNetwork, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID:    s.ID,
		NetNS:          netns,
		IfName:         w.IfName,
		Args:           s.Args,
		CapabilityArgs: s.Capabilities,
	}
}

// Result is what the plugins gave.
type Result struct {
	// IPs without prefix length; those of the first network come first.
	IPs []string
	// Raw is a JSON array of {network, ifName, result}, result being the CNI
	// result in version 1.1.0 of the specification's form.
	Raw json.RawMessage
	// Saved is what the attachment was made with.
	Saved json.RawMessage
}
