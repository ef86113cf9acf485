// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// FuzzSpec makes specs of arbitrary requests: each gives one or an error, and nothing in a
// request, its annotations among it, changes what shims and plugins go by.
func FuzzSpec(f *testing.F) {
	for _, change := range []func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig){nil, full, annotated} {
		c, p := &runtime.ContainerConfig{}, &runtime.PodSandboxConfig{}
		if change != nil {
			c.Linux = &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{}}
			p.Linux = &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{}}
			change(&input{Config: steps.Config{Runtimes: map[string]steps.Runtime{}}}, c, p)
		}
		ctr, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		pod, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(ctr, pod, false)
		f.Add(ctr, pod, true)
	}
	f.Fuzz(func(t *testing.T, ctr, pod []byte, systemd bool) {
		in := request(t, nil)
		c, p := in.Ctr.Config.M, in.Pod.Pod.Config.M
		if (proto.UnmarshalOptions{Merge: true}).Unmarshal(ctr, c) != nil || (proto.UnmarshalOptions{Merge: true}).Unmarshal(pod, p) != nil {
			return
		}
		for _, m := range c.GetMounts() { // a source that is missing gets made
			if m != nil && strings.HasPrefix(m.GetHostPath(), "/") {
				m.HostPath = filepath.Join(in.Rootfs.Path, m.GetHostPath())
			}
		}
		if systemd {
			in.Config.CgroupDriver, in.Config.DefaultCgroupParent = cgroups.Systemd, "sandflow.slice"
		}
		b, err := newSpec(in, fakeHost())
		if err != nil {
			return
		}
		if _, err := json.Marshal(b.spec); err != nil {
			t.Errorf("the spec cannot be written: %v", err)
		}
		for key, want := range standardAnnotations(in.Pod.ID, p.GetMetadata(), c) {
			if got := b.spec.Annotations[key]; got != want {
				t.Errorf("annotation %s is %q, not %q", key, got, want)
			}
		}
		if b.spec.Root.Path != rootfsDir || !strings.Contains(b.spec.Linux.CgroupsPath, containerID) {
			t.Errorf("the root is %s, the cgroup %s", b.spec.Root.Path, b.spec.Linux.CgroupsPath)
		}
	})
}

// annotated tries to be another pod's sandbox container.
func annotated(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
	c.Annotations = standardAnnotations("other", &runtime.PodSandboxMetadata{Name: "x"}, c)
	c.Annotations[annotationType] = "sandbox"
	p.Annotations = maps.Clone(c.Annotations)
}
