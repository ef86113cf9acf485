// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
	"github.com/sandflow-cri/sandflow/steps/shim"
)

// TestAdmit shows records with shims of several versions of the protocol.
func TestAdmit(t *testing.T) {
	record := func(workflow string, values ...engine.Value) *engine.View {
		v, err := engine.NewView(engine.View{Workflow: workflow, ID: "p"}, values...)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, k := range []struct {
		protocol int
		ok       bool
	}{{0, true}, {shimapi.Protocol, true}, {shimapi.Protocol + 1, false}, {-1, false}} {
		err := shim.Admit(record(steps.Sandbox, steps.PodShim.With(steps.Shim{Address: "/s", Protocol: k.protocol})))
		if k.ok != (err == nil) {
			t.Errorf("protocol %d: %v", k.protocol, err)
		}
		both := []string{fmt.Sprintf("version %d", k.protocol), fmt.Sprintf("knows %d to %d", shimapi.Oldest, shimapi.Protocol)}
		for _, says := range both {
			if !k.ok && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), says)) {
				t.Errorf("protocol %d: %v does not say %q", k.protocol, err, says)
			}
		}
	}
	if err := shim.Admit(record(steps.Sandbox)); err != nil {
		t.Errorf("a pod without a shim: %v", err)
	}
}
