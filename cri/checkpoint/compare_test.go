// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestCompatible(t *testing.T) {
	spec := func(change func(*specs.Spec)) *specs.Spec {
		s := &specs.Spec{
			Process: &specs.Process{
				Args: []string{"sleep", "1"}, Cwd: "/", Env: []string{"A=1", "B=2", "HOSTNAME=x"},
				Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_CHOWN"}},
			},
			Mounts: []specs.Mount{{Destination: "/proc", Source: "proc"}, {Destination: "/data", Source: "/a"}},
			Linux:  &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}},
		}
		if change != nil {
			change(s)
		}
		return s
	}
	for name, c := range map[string]struct {
		change func(*specs.Spec)
		want   string // part of the message; empty: compatible
	}{
		"the same":           {nil, ""},
		"other order":        {func(s *specs.Spec) { s.Process.Env = []string{"B=2", "A=1"} }, ""},
		"other host name":    {func(s *specs.Spec) { s.Process.Env[2] = "HOSTNAME=y" }, ""},
		"other mount source": {func(s *specs.Spec) { s.Mounts[1].Source = "/b" }, ""},
		"other limits":       {func(s *specs.Spec) { s.Linux.Resources = &specs.LinuxResources{} }, ""},
		"command":            {func(s *specs.Spec) { s.Process.Args = []string{"1", "sleep"} }, "command"},
		"directory":          {func(s *specs.Spec) { s.Process.Cwd = "/tmp" }, "working directory"},
		"environment":        {func(s *specs.Spec) { s.Process.Env[0] = "A=2" }, "environment"},
		"user":               {func(s *specs.Spec) { s.Process.User.UID = 1 }, "user"},
		"groups":             {func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{1} }, "groups"},
		"terminal":           {func(s *specs.Spec) { s.Process.Terminal = true }, "terminal"},
		"capabilities":       {func(s *specs.Spec) { s.Process.Capabilities = nil }, "capabilities"},
		"no_new_privs":       {func(s *specs.Spec) { s.Process.NoNewPrivileges = true }, "no_new_privs"},
		"seccomp":            {func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno} }, "seccomp"},
		"mounts":             {func(s *specs.Spec) { s.Mounts = s.Mounts[:1] }, "mounts"},
		"namespaces":         {func(s *specs.Spec) { s.Linux.Namespaces = nil }, "namespaces"},
		"nothing known":      {func(s *specs.Spec) { *s = specs.Spec{} }, "command"},
	} {
		err := Compatible(spec(nil), spec(c.change))
		if (err != nil) != (c.want != "") || err != nil && (!strings.Contains(err.Error(), c.want) || !errdefs.IsInvalidArgument(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
