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
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

func devicePaths(s *specs.Spec) []string {
	var out []string
	for _, d := range s.Linux.Devices {
		out = append(out, d.Path)
	}
	return out
}

// Case 66: mappings hold for privileged containers, links are followed,
// directories give all devices, a missing path fails.
func TestDevices(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/null", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		privileged bool
		without    bool
		device     *runtime.Device
		want       []string
		access     string
	}{
		{"named anew", false, false, &runtime.Device{HostPath: "/dev/null", ContainerPath: "/dev/mine", Permissions: "r"}, []string{"/dev/mine"}, "r"},
		{"no other name", false, false, &runtime.Device{HostPath: "/dev/null"}, []string{"/dev/null"}, "rwm"},
		{"link", false, false, &runtime.Device{HostPath: filepath.Join(dir, "link"), ContainerPath: "dev/mine"}, []string{"/dev/mine"}, "rwm"},
		{"privileged", true, false, &runtime.Device{HostPath: "/dev/zero", ContainerPath: "/dev/mine"}, []string{"/dev/null", "/dev/mine"}, "rwm"},
		{"privileged, same name", true, false, &runtime.Device{HostPath: "/dev/zero", ContainerPath: "/dev/null"}, []string{"/dev/null"}, "rwm"},
		{"privileged without the node's", true, true, &runtime.Device{HostPath: "/dev/zero", ContainerPath: "/dev/mine"}, []string{"/dev/mine"}, "rwm"},
	} {
		s := made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			r.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = c.privileged, c.privileged
			in.Config.PrivilegedWithoutHostDevices = c.without
			r.Devices = []*runtime.Device{c.device}
		})
		if got := devicePaths(s); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		rules := s.Linux.Resources.Devices
		if got := rules[len(rules)-1].Access; got != c.access || rules[0].Allow != (c.privileged && !c.without) {
			t.Errorf("%s: rules %+v", c.name, rules)
		}
	}
}

func TestDevicesBelowADirectory(t *testing.T) {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("this node has no /dev/net/tun")
	}
	devices, err := requestDevices(&runtime.Device{HostPath: "/dev/net", ContainerPath: "/dev/other"})
	if err != nil || len(devices) == 0 || devices[0].Path != "/dev/other/tun" {
		t.Errorf("got %v, %v", devices, err)
	}
}

func TestDevicesRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for _, path := range []string{"/dev/missing", file, "relative", ""} {
		err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			c.Devices = []*runtime.Device{{HostPath: path}}
		})
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestHostDevices(t *testing.T) {
	devices, err := hostDevices()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, d := range devices {
		paths = append(paths, d.Path)
	}
	if !slices.Contains(paths, "/dev/null") || slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, "/dev/pts/") || p == "/dev/ptmx" }) {
		t.Errorf("got %v", paths)
	}
}

const cdiSpec = `{"cdiVersion":"0.6.0","kind":"example.com/gpu","devices":[
 {"name":"0","containerEdits":{"env":["GPU=0"],"deviceNodes":[{"path":"/dev/mine","hostPath":"/dev/null"}],"mounts":[{"hostPath":"/usr","containerPath":"/gpu"}]}},
 {"name":"1","containerEdits":{"env":["GPU1=1"]}}]}`

func TestCDI(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "gpu.json"), cdiSpec)
	use := func(names []string, annotations map[string]string) func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig) {
		return func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			in.Config.CDISpecDirs = []string{dir}
			c.Annotations = annotations
			for _, n := range names {
				c.CDIDevices = append(c.CDIDevices, &runtime.CDIDevice{Name: n})
			}
		}
	}
	s := made(t, fakeHost(), use([]string{"example.com/gpu=0"}, map[string]string{"cdi.k8s.io/x": "example.com/gpu=0,example.com/gpu=1"}))
	if !slices.Contains(s.Process.Env, "GPU=0") || !slices.Contains(s.Process.Env, "GPU1=1") || mountAt(s, "/gpu") == nil {
		t.Errorf("env %v, mounts %v", s.Process.Env, s.Mounts)
	}
	if got := devicePaths(s); !slices.Equal(got, []string{"/dev/mine"}) {
		t.Errorf("devices %v", got)
	}
	err := refused(t, fakeHost(), use([]string{"example.com/gpu=9"}, nil))
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "example.com/gpu=9") {
		t.Error(err)
	}
}

func TestAnnotations(t *testing.T) {
	s := made(t, fakeHost(), func(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		in.Config.Runtimes["runc"] = steps.Runtime{Annotations: []string{"a.*", "b.?", "[broken"}}
		p.Annotations = map[string]string{"a.b/c": "pod", "a.x": "pod", "b.1": "1", "b.22": "2", "[broken": "3", annotationSandboxID: "forged"}
		c.Annotations = map[string]string{"a.x": "container", "other": "no"}
	})
	want := map[string]string{"a.b/c": "pod", "a.x": "container", "b.1": "1"}
	for k, v := range standardAnnotations("p0d", &runtime.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "u-1"}, &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "main"}, Image: &runtime.ImageSpec{Image: "example.org/app:1"},
	}) {
		want[k] = v
	}
	if len(s.Annotations) != len(want) {
		t.Errorf("got %v", s.Annotations)
	}
	for k, v := range want {
		if s.Annotations[k] != v {
			t.Errorf("%s is %q, want %q", k, s.Annotations[k], v)
		}
	}
}

// Even a handler that lets everything through does not let the standard ones be forged.
func TestStandardAnnotationsCannotBeForged(t *testing.T) {
	s := made(t, fakeHost(), func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		in.Config.Runtimes["runc"] = steps.Runtime{Annotations: []string{"*"}}
		c.Annotations = map[string]string{annotationSandboxID: "forged", annotationType: "sandbox"}
	})
	if s.Annotations[annotationSandboxID] != "p0d" || s.Annotations[annotationType] != containerType {
		t.Errorf("got %v", s.Annotations)
	}
}

func FuzzAllowed(f *testing.F) {
	f.Add("a.*", "a.b/c")
	f.Add("[", "[")
	f.Add("*", "")
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if allowed(nil, key) {
			t.Error("allowed without patterns")
		}
		if !allowed([]string{"*"}, key) {
			t.Errorf("* does not let %q through", key)
		}
		if allowed([]string{pattern}, key) && pattern == "" && key != "" {
			t.Error("an empty pattern matches")
		}
	})
}
