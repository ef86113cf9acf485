// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
)

func TestHooksInOrderEachOnce(t *testing.T) {
	c, n := config(t), &node{}
	m := start(t, c, n)
	p := join(t, c, "10", &plugin{})
	ctx := t.Context()
	steps := []func(){
		func() { fatal(t, m.RunPod(ctx, "p")) },
		func() { fatal(t, m.UpdatePod(ctx, "p", nil, &api.LinuxResources{})) },
		func() { m.UpdatedPod(ctx, "p") },
		func() { _, err := m.CreateContainer(ctx, "c", "p"); fatal(t, err) },
		func() { m.CreatedContainer(ctx, "c") },
		func() { fatal(t, m.StartContainer(ctx, "c")) },
		func() { m.StartedContainer(ctx, "c") },
		func() { _, err := m.UpdateContainer(ctx, "c", &api.LinuxResources{}); fatal(t, err) },
		func() { m.UpdatedContainer(ctx, "c") },
		func() { m.StopPod(ctx, "p") }, // tells the container's stop first
		func() { m.StopContainer(ctx, "c") },
		func() { m.StopPod(ctx, "p") },
		func() { m.RemovePod(ctx, "p") }, // and its removal
		func() { m.RemoveContainer(ctx, "c") },
		func() { m.RemovePod(ctx, "p") },
	}
	for _, step := range steps {
		step()
	}
	want(t, p.told(), "RunPodSandbox p", "UpdatePodSandbox p", "PostUpdatePodSandbox p",
		"CreateContainer c", "PostCreateContainer c", "StartContainer c", "PostStartContainer c",
		"UpdateContainer c", "PostUpdateContainer c",
		"StopContainer c", "StopPodSandbox p", "RemoveContainer c", "RemovePodSandbox p")
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
