// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"encoding/json"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestDescribeLeavesOutWhatIsNotThere(t *testing.T) {
	for _, s := range []*specs.Spec{
		{}, {Process: &specs.Process{}}, {Linux: &specs.Linux{}},
		{Process: &specs.Process{}, Linux: &specs.Linux{Resources: &specs.LinuxResources{}}},
	} {
		out := &api.Container{Linux: &api.LinuxContainer{}}
		describe(s, out)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := adjust(s, &api.ContainerAdjustment{Linux: &api.LinuxContainerAdjustment{Resources: &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{}}}}, nil); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
