// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

// Kubelet takes the sandbox of a pod that was created last for the one in use, and so with
// the containers of one name. If the clock was set back meanwhile, the time of creation must
// still be later than that of the ones before; otherwise kubelet makes another at each look.

// podCreated is when a sandbox made now is said to be created.
func (s *Server) podCreated(m *runtime.PodSandboxMetadata) time.Time {
	now := time.Now()
	for _, v := range s.engine.List(steps.Sandbox) {
		if strings.HasPrefix(v.Name, podIdentity(m)) {
			now = after(now, newPod(v).created())
		}
	}
	return now
}

// containerCreated is the same for a container in a sandbox.
func (s *Server) containerCreated(p pod, name string) time.Time {
	sandboxes := map[string]bool{p.ID: true}
	for _, v := range s.engine.List(steps.Sandbox) {
		if strings.HasPrefix(v.Name, podIdentity(p.config.GetMetadata())) {
			sandboxes[v.ID] = true
		}
	}
	now := time.Now()
	for _, v := range s.engine.List(steps.Container) {
		podID, rest, _ := strings.Cut(v.Name, "_")
		if sandboxes[podID] && strings.HasPrefix(rest, name+"_") {
			now = after(now, newContainer(v).created())
		}
	}
	return now
}

func after(now time.Time, created int64) time.Time {
	if now.UnixNano() > created {
		return now
	}
	return time.Unix(0, created+1)
}
