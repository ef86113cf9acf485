// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

func TestDefaultIsGood(t *testing.T) {
	if err := Check(t.Context(), config.Default()); err != nil {
		t.Error(err)
	}
	c, err := config.Parse("c.toml", []byte("[containerd.plugins.\"io.containerd.metadata.v1.bolt\"]\nno_sync = true\n"))
	if err == nil {
		err = Check(t.Context(), c)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestRefusals of the flows: with file, line and what would have been possible.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{
			"unknown action", "[workflows.sandbox.create]\nsteps = [\n[\"files\", \"namespaces\"],\n[\"netwrk\"]]\n",
			"c.toml:4: workflows.sandbox.create.steps[1][0]: ",
		},
		{
			"twice", "[workflows.container.create]\nsteps = [[\"rootfs\"],\n[\"volumes\"],\n[\"spec\", \"rootfs\"]]\n",
			"c.toml:4: workflows.container.create.steps[2][1]: ",
		},
		{
			"empty step", "[workflows.container.create]\nsteps = [[\"rootfs\"],\n[],\n[\"volumes\"], [\"spec\"]]\n",
			"c.toml:2: workflows.container.create.steps[1]: ", // an empty list has no line of its own
		},
		{
			"needs unfilled", "[workflows.container.create]\nsteps = [[\"spec\"],\n[\"rootfs\"], [\"volumes\"]]\n",
			"c.toml:2: workflows.container.create.steps[0][0]: ",
		},
		{
			"left out of destroy", "\n[workflows.sandbox.destroy]\nsteps = [[\"shim\", \"sandbox-container\"], [\"network\"], [\"files\"]]\n",
			"c.toml:3: workflows.sandbox.destroy.steps: ",
		},
		{
			"no such containerd plugin", "[containerd.plugins.\"io.containerd.metadata.v1.blot\"]\nno_sync = true\n",
			"c.toml:1: containerd.plugins.\"io.containerd.metadata.v1.blot\": there is no such plugin in this build (known: ",
		},
		{
			"key of a containerd plugin", "[containerd.plugins.\"io.containerd.metadata.v1.bolt\"]\n\nno_sink = true\n",
			"c.toml:3: containerd.plugins.\"io.containerd.metadata.v1.bolt\".no_sink: unknown key",
		},
		{
			"value of a containerd plugin", "[containerd.plugins.\"io.containerd.metadata.v1.bolt\"]\n\nno_sync = 7\n",
			"c.toml:3: containerd.plugins.\"io.containerd.metadata.v1.bolt\".no_sync: ",
		},
		{
			"unknown in a down flow", "[workflows.container.stop]\nsteps = [[\"taks\"]]\n",
			"c.toml:2: workflows.container.stop.steps[0][0]: ",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := config.Parse("c.toml", []byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			err = Check(t.Context(), cfg)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Fatalf("error\n%v\nwant\n%s", err, tt.want)
			}
			var e *config.Error
			if !errors.As(err, &e) {
				t.Fatalf("error is a %T", err)
			}
			if tt.name == "unknown action" && !slices.Contains(e.Known, "network") {
				t.Errorf("known names are %v", e.Known)
			}
		})
	}
}

func TestConversions(t *testing.T) {
	c, err := config.Parse("c.toml", []byte(`
root = "/r"
state = "/s"
[runtime]
cgroup_driver = "systemd"
[runtime.handlers.crun]
binary = "crun"
[cni]
max_conf = 0
ip_preference = "ipv6"
[cri]
stream_port = 4000
`))
	if err != nil {
		t.Fatal(err)
	}
	s := Steps(c)
	if s.DefaultCgroupParent != "sandflow-pods.slice" || !s.Runtimes["crun"].SystemdCgroup || s.Root != "/r" || s.MaxLogLine != 16384 {
		t.Errorf("steps: %+v", s)
	}
	if n := CNI(c); n.MaxConf != 0 || n.IPPreference != "ipv6" || n.CacheDir != "/r/cni" {
		t.Errorf("cni: %+v", n)
	}
	if r := Runtime(c, nil); r.Handlers[""].Binary != "runc" || r.Handlers["crun"].Binary != "crun" || r.Bundle("x") != "/s/containers/x" {
		t.Errorf("runtime: %+v", r)
	}
	if v := Store(c); v.Root != "/r/containerd" || v.State != "/s/containerd" || v.Socket != "/s/containerd.sock" {
		t.Errorf("store: %+v", v)
	}
	if v := Streaming(c); v.Address != "127.0.0.1" || v.Port != "4000" {
		t.Errorf("streaming: %+v", v)
	}
}
