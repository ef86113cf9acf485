// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
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

// Prepare freezes what an attachment will be made with: the chosen
// configurations and the runtime arguments. Keep the returned value durably
// before Attach, and hand it to Attach and Detach in Attachment.Saved.
// It runs no plugin. Without a usable configuration it returns ErrNoNetwork.
func (n *Network) Prepare(ctx context.Context, a Attachment) (json.RawMessage, error) {
	return nil, nil
}

// Attach runs ADD of every network. If it fails, what was done is not undone:
// call Detach with the same Saved.
func (n *Network) Attach(ctx context.Context, a Attachment) (Result, error) { return Result{}, nil }

// Detach runs DEL of every network with the configuration that ADD used. It
// needs nothing but a.ID and a.Saved: neither the configuration directory nor
// the network namespace. Without Saved nothing was attached, and it does nothing.
// When some networks could not be detached, the error is a *DetachError.
func (n *Network) Detach(ctx context.Context, a Attachment) error { return nil }

// GC runs the GC verb of the networks that are new enough for it (1.1.0): the
// plugins release everything that belongs to no pod in keep. It must not be used while
// another runtime attaches pods to the same networks; a configuration can refuse it
// with disableGC.
func (n *Network) GC(ctx context.Context, keep []string) error { return nil }
