// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestGoldenSpecs(t *testing.T) {
	for _, c := range []struct {
		name   string
		host   *host
		change func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig)
	}{
		{"plain", fakeHost(), nil},
		{"full", unifiedHost(), full},
		{"privileged", fakeHost(), func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			c.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = true, true
		}},
		{"node", fakeHost(), func(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			in.Pod.Namespaces, in.Pod.Files = steps.Namespaces{}, steps.Files{}
			node := &runtime.NamespaceOption{Network: runtime.NamespaceMode_NODE, Ipc: runtime.NamespaceMode_NODE, Pid: runtime.NamespaceMode_NODE}
			c.Linux.SecurityContext.NamespaceOptions, p.Linux.SecurityContext.NamespaceOptions = node, node
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := json.MarshalIndent(made(t, c.host, c.change), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", c.name+".json")
			if *update {
				write(t, file, string(got))
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the spec is not that of %s (go test -update writes it anew); it is\n%s", file, got)
			}
		})
	}
}

// full asks for about everything, under systemd and crun.
func full(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
	in.Config.CgroupDriver = cgroups.Systemd
	in.Config.Runtimes["crun"] = steps.Runtime{Binary: "/usr/bin/crun", Annotations: []string{"run.oci.*"}}
	in.Pod.Pod.Handler = "crun"
	in.Pod.Shim.PIDNamespace, in.Pod.Namespaces.User = "/pod/ns/pid", "/pod/ns/user"
	in.Volumes.Mounts = []steps.Volume{{Source: "/vol/data", Target: "/data"}, {Source: "/vol/img", Target: "/img", ReadOnly: true, ImageRef: "i"}}
	p.Linux.CgroupParent = "/kubepods.slice/kubepods-podx.slice"
	p.Annotations = map[string]string{"run.oci.keep": "yes", "other": "no", annotationSandboxID: "forged"}
	ids := []*runtime.IDMapping{{HostId: 100000, Length: 65536}}
	p.Linux.SecurityContext.NamespaceOptions = &runtime.NamespaceOption{UsernsOptions: &runtime.UserNamespace{Uids: ids, Gids: ids}}
	c.Command, c.Args, c.WorkingDir, c.Tty = []string{"/bin/app"}, []string{"-v"}, "/work/dir", true
	c.Envs = []*runtime.KeyValue{{Key: "A", Value: []byte("request")}, {Key: "B"}}
	c.Mounts = []*runtime.Mount{
		{HostPath: "/usr", ContainerPath: "/host/usr", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"nosuid"}},
		{HostPath: "/etc", ContainerPath: "/host", UidMappings: ids, GidMappings: ids},
		{HostPath: "/etc/hosts", ContainerPath: "/etc/hosts"},
	}
	c.Linux.Resources = &runtime.LinuxContainerResources{
		CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, CpusetCpus: "0-1", MemoryLimitInBytes: 64 << 20, OomScoreAdj: -997,
		HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}}, Unified: map[string]string{"memory.oom.group": "1"},
	}
	s := c.Linux.SecurityContext
	s.RunAsUsername, s.SupplementalGroups, s.ReadonlyRootfs, s.NoNewPrivs = "web", []int64{7}, true, true
	s.Capabilities = &runtime.Capability{AddCapabilities: []string{"net_admin"}, DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"CAP_NET_RAW"}}
	s.MaskedPaths, s.ReadonlyPaths = []string{"/proc/kcore"}, []string{"/proc/sys"}
}
