// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

func TestArguments(t *testing.T) {
	entry, cmd := []string{"entry"}, []string{"cmd"}
	for _, c := range []struct{ command, args, want []string }{
		{nil, nil, []string{"entry", "cmd"}},
		{nil, []string{"a"}, []string{"entry", "a"}},
		{[]string{"c"}, nil, []string{"c"}},
		{[]string{"c"}, []string{"a"}, []string{"c", "a"}},
	} {
		if got := arguments(&runtime.ContainerConfig{Command: c.command, Args: c.args}, entry, cmd); !slices.Equal(got, c.want) {
			t.Errorf("%v %v: got %v, want %v", c.command, c.args, got, c.want)
		}
	}
	err := refused(t, fakeHost(), func(in *input, _ *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		in.Ctr.Image.Config.Entrypoint, in.Ctr.Image.Config.Cmd = nil, nil
	})
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestEnvironment(t *testing.T) {
	s := made(t, fakeHost(), func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		in.Ctr.Image.Config.Env = []string{"A=image", "B=image", "=bad", "C"}
		c.Envs = []*runtime.KeyValue{{Key: "B", Value: []byte("request=1")}, {Key: "E"}}
		c.Tty = true
	})
	want := []string{defaultPath, "TERM=xterm", "HOSTNAME=pod-0", "A=image", "B=request=1", "E="}
	if !slices.Equal(s.Process.Env, want) {
		t.Errorf("got %q, want %q", s.Process.Env, want)
	}
	s = made(t, fakeHost(), func(in *input, _ *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		in.Pod.Namespaces = steps.Namespaces{}
	})
	if !slices.Contains(s.Process.Env, "HOSTNAME=node") {
		t.Errorf("on the node: %q", s.Process.Env)
	}
}

// Case 93: the working directory is made inside the root file system.
func TestWorkingDir(t *testing.T) {
	for _, c := range []struct{ request, image, want string }{{"", "", "/"}, {"", "app/x", "/app/x"}, {"/r", "/app", "/r"}, {"/r/../s", "", "/s"}} {
		var root string
		s := made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			r.WorkingDir, in.Ctr.Image.Config.WorkingDir, root = c.request, c.image, in.Rootfs.Path
		})
		if info, err := os.Stat(filepath.Join(root, c.want)); s.Process.Cwd != c.want || err != nil || !info.IsDir() {
			t.Errorf("%q and %q: got %q, %v", c.request, c.image, s.Process.Cwd, err)
		}
	}
	outside := t.TempDir()
	made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		if err := os.Symlink("../../../../../.."+filepath.Dir(outside), filepath.Join(in.Rootfs.Path, "link")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(in.Rootfs.Path, filepath.Dir(outside)), 0o755); err != nil {
			t.Fatal(err)
		}
		r.WorkingDir = "/link/made"
	})
	if _, err := os.Lstat(filepath.Join(filepath.Dir(outside), "made")); err == nil {
		t.Error("the directory was made outside of the root file system")
	}
}

// TestImageWithZeroBytes has texts of the image with what the kernel takes for their end.
func TestImageWithZeroBytes(t *testing.T) {
	for field, set := range map[string]func(*ocispec.ImageConfig){
		"Entrypoint": func(c *ocispec.ImageConfig) { c.Entrypoint = []string{"sh\x00-x"} },
		"Cmd":        func(c *ocispec.ImageConfig) { c.Cmd = []string{"\x00"} },
		"Env":        func(c *ocispec.ImageConfig) { c.Env = []string{"PATH=/bin\x00/evil"} },
		"WorkingDir": func(c *ocispec.ImageConfig) { c.WorkingDir = "/w\x00" },
		"User":       func(c *ocispec.ImageConfig) { c.User = "0\x001000" },
	} {
		err := refused(t, fakeHost(), func(in *input, _ *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) { set(&in.Ctr.Image.Config) })
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), field) && field != "User" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestPIDNamespace(t *testing.T) {
	pod, own, node, target := runtime.NamespaceMode_POD, runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_NODE, runtime.NamespaceMode_TARGET
	for _, c := range []struct {
		pod, container runtime.NamespaceMode
		want           string
	}{
		{pod, pod, "/pod/ns/pid"}, {pod, own, "new"}, {own, own, "new"}, {own, pod, "new"}, {node, node, "host"}, {node, pod, "host"}, {node, own, "new"}, {own, target, "/proc/42/ns/pid"},
	} {
		s := made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			in.Pod.Shim.PIDNamespace, in.Ctr.TargetPID = "/pod/ns/pid", 42
			p.Linux.SecurityContext.NamespaceOptions.Pid = c.pod
			r.Linux.SecurityContext.NamespaceOptions = &runtime.NamespaceOption{Pid: c.container, TargetId: "t"}
		})
		got := "host"
		for _, n := range s.Linux.Namespaces {
			if n.Type == specs.PIDNamespace {
				if got = n.Path; got == "" {
					got = "new"
				}
			}
		}
		if got != c.want {
			t.Errorf("pod %s, container %s: got %s, want %s", c.pod, c.container, got, c.want)
		}
	}
}

func TestPIDNamespaceRefused(t *testing.T) {
	for name, o := range map[string]*runtime.NamespaceOption{
		"NODE in a pod without it": {Pid: runtime.NamespaceMode_NODE}, "TARGET without id": {Pid: runtime.NamespaceMode_TARGET},
		"TARGET that is gone": {Pid: runtime.NamespaceMode_TARGET, TargetId: "t"}, "unknown": {Pid: 9},
	} {
		err := refused(t, fakeHost(), func(_ *input, r *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			r.Linux.SecurityContext.NamespaceOptions = o
		})
		if !errors.Is(err, errdefs.ErrInvalidArgument) && !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for want, c := range map[string]*runtime.ContainerConfig{
		"config.envs[0].key":            {Envs: []*runtime.KeyValue{{Key: "a=b"}}},
		"config.envs[1].value":          {Envs: []*runtime.KeyValue{{Key: "a"}, {Key: "b", Value: []byte("\x00")}}},
		"config.working_dir":            {WorkingDir: "relative"},
		"config.mounts[0]":              {Mounts: []*runtime.Mount{nil}},
		"config.devices[0]":             {Devices: []*runtime.Device{nil}},
		"config.devices[0].perm":        {Devices: []*runtime.Device{{HostPath: "/dev/null", Permissions: "x"}}},
		"config.CDI_devices[0]":         {CDIDevices: []*runtime.CDIDevice{{Name: "x"}}},
		"config.stop_signal":            {StopSignal: 999},
		"config.command":                {Command: []string{"a\x00"}},
		"config.linux.security_context": {Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{MaskedPaths: []string{"rel"}}}},
		"config.linux.resources":        {Linux: &runtime.LinuxContainerConfig{Resources: &runtime.LinuxContainerResources{CpuShares: -1}}},
	} {
		err := Validate(c, &runtime.PodSandboxConfig{}, steps.Config{DefaultCgroupParent: "/sandflow"})
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	if err := Validate(nil, nil, steps.Config{}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
	if err := Validate(&runtime.ContainerConfig{}, &runtime.PodSandboxConfig{}, steps.Config{}); err != nil {
		t.Error(err)
	}
}
