// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// pod is a sandbox as its record tells it.
type pod struct {
	*engine.View
	request steps.Pod
	config  *runtime.PodSandboxConfig
}

func newPod(v *engine.View) pod {
	p := pod{View: v, config: &runtime.PodSandboxConfig{}}
	request, ok, err := steps.PodRequest.Get(v)
	if err == nil && ok && request.Config.M != nil {
		p.request, p.config = request, request.Config.M
	}
	if p.config.GetMetadata() == nil { // a damaged record is listed under its ID
		p.config.Metadata = &runtime.PodSandboxMetadata{Name: v.ID}
	}
	return p
}

// findPod resolves a sandbox ID or a unique prefix of one.
func (s *Server) findPod(id string) (pod, error) {
	v, err := find(s.engine, steps.Sandbox, "sandbox", id)
	if err != nil {
		return pod{}, err
	}
	return newPod(v), nil
}

// find resolves an ID or a unique prefix of one.
func find(e *engine.Engine, workflow, kind, id string) (*engine.View, error) {
	if id == "" {
		return nil, fmt.Errorf("find %s: its id is empty: %w", kind, errdefs.ErrInvalidArgument)
	}
	if v, ok := e.Get(workflow, id); ok {
		return v, nil
	}
	var found *engine.View
	if len(id) >= minPrefix {
		for _, v := range e.List(workflow) {
			if !strings.HasPrefix(v.ID, id) {
				continue
			}
			if found != nil {
				return nil, fmt.Errorf("find %s %q: several begin so: %w", kind, id, errdefs.ErrInvalidArgument)
			}
			found = v
		}
	}
	if found == nil {
		return nil, fmt.Errorf("find %s %q: %w", kind, id, errdefs.ErrNotFound)
	}
	return found, nil
}

// minPrefix keeps a stray short string from naming a pod by accident.
const minPrefix = 4

// listed tells whether a sandbox is shown to clients: not while its create has
// not succeeded, unless it is stuck and an operator must see it.
func (p pod) listed() bool { return p.Phase != engine.Climbing }

// state is READY only when the whole ladder stands and its shim lives.
func (p pod) state() runtime.PodSandboxState {
	if p.Phase == engine.Standing && p.Station == steps.Ready && !p.Damaged && !p.lost() {
		return runtime.PodSandboxState_SANDBOX_READY
	}
	return runtime.PodSandboxState_SANDBOX_NOTREADY
}

// lost tells that the shim of a pod that stands has gone away unasked.
func (p pod) lost() bool {
	lost, _, err := steps.PodLost.Get(p.View)
	return lost || err != nil
}

func (p pod) namespaceOptions() *runtime.NamespaceOption {
	if o := p.config.GetLinux().GetSecurityContext().GetNamespaceOptions(); o != nil {
		return o
	}
	return &runtime.NamespaceOption{}
}

func (p pod) hostNetwork() bool {
	return p.namespaceOptions().GetNetwork() == runtime.NamespaceMode_NODE
}

// summary is the entry of ListPodSandbox.
func (p pod) summary() *runtime.PodSandbox {
	return &runtime.PodSandbox{
		Id: p.ID, Metadata: p.config.GetMetadata(), State: p.state(),
		CreatedAt: p.created(), Labels: p.config.GetLabels(),
		Annotations: p.config.GetAnnotations(), RuntimeHandler: p.request.Handler,
	}
}

// created is in nanoseconds since the epoch.
func (p pod) created() int64 {
	if !p.request.Created.IsZero() {
		return p.request.Created.UnixNano()
	}
	return p.Created.UnixNano()
}

func (p pod) status() *runtime.PodSandboxStatus {
	o := p.namespaceOptions()
	return &runtime.PodSandboxStatus{
		Id: p.ID, Metadata: p.config.GetMetadata(), State: p.state(),
		CreatedAt: p.created(), Network: p.network(),
		Linux: &runtime.LinuxPodSandboxStatus{Namespaces: &runtime.Namespace{
			Options: &runtime.NamespaceOption{
				Network: o.GetNetwork(), Pid: o.GetPid(), Ipc: o.GetIpc(),
				TargetId: o.GetTargetId(), UsernsOptions: o.GetUsernsOptions(),
			},
		}},
		Labels: p.config.GetLabels(), Annotations: p.config.GetAnnotations(),
		RuntimeHandler: p.request.Handler,
	}
}

// network gives the addresses in the order the plugins gave them, as long as
// the pod has them; a pod on the node's network reports none.
func (p pod) network() *runtime.PodSandboxNetworkStatus {
	status := &runtime.PodSandboxNetworkStatus{}
	if p.hostNetwork() || p.Station != steps.Ready {
		return status
	}
	n, _, err := steps.PodNetwork.Get(p.View)
	if err != nil || len(n.IPs) == 0 {
		return status
	}
	status.Ip = n.IPs[0]
	for _, ip := range n.IPs[1:] {
		status.AdditionalIps = append(status.AdditionalIps, &runtime.PodIP{Ip: ip})
	}
	return status
}

// view is what the pod's containers see of it.
func (p pod) view() (steps.PodView, error) {
	view := steps.PodView{ID: p.ID, Pod: p.request}
	var err error
	if view.Files, _, err = steps.PodFiles.Get(p.View); err != nil {
		return view, err
	}
	if view.Namespaces, _, err = steps.PodNamespaces.Get(p.View); err != nil {
		return view, err
	}
	view.Shim, _, err = steps.PodShim.Get(p.View)
	return view, err
}
