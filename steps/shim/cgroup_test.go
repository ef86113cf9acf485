// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"testing"

	criruntime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

// The init is where a pause container would be, under both cgroup drivers.
func TestInitCgroup(t *testing.T) {
	for _, c := range []struct{ driver, parent, byDefault, want string }{
		{"cgroupfs", "/kubepods/podx", "/sandflow", "/kubepods/podx/id"},
		{"cgroupfs", "", "/sandflow", "/sandflow/id"},
		{"cgroupfs", "", "", ""},
		{"systemd", "kubepods-podx.slice", "sandflow.slice", "kubepods-podx.slice:sandflow:id"},
		{"systemd", "/kubepods.slice/kubepods-podx.slice", "sandflow.slice", "kubepods-podx.slice:sandflow:id"},
		{"systemd", "", "sandflow.slice", "sandflow.slice:sandflow:id"},
		{"cgroupfs", "kubepods-podx.slice", "/sandflow", ""},
		{"systemd", "/kubepods/podx", "sandflow.slice", ""},
	} {
		a := &Action{cfg: steps.Config{CgroupDriver: c.driver, DefaultCgroupParent: c.byDefault}}
		got := a.initCgroup(&criruntime.PodSandboxConfig{Linux: &criruntime.LinuxPodSandboxConfig{CgroupParent: c.parent}}, "id")
		if got != c.want {
			t.Errorf("%s, parent %q, default %q: %q, want %q", c.driver, c.parent, c.byDefault, got, c.want)
		}
	}
}
