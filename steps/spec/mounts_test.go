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
	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

func mounted(t *testing.T, mounts ...*runtime.Mount) *specs.Spec {
	t.Helper()
	return made(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) { c.Mounts = mounts })
}

// Case 67: the pod's files follow the root's flag, kubelet's own mount wins, the
// node's own files are never writable.
func TestPodFiles(t *testing.T) {
	has := func(s *specs.Spec, target, source, access string) {
		t.Helper()
		m := mountAt(s, target)
		if m == nil || m.Source != source || !slices.Contains(m.Options, access) || !slices.Contains(m.Options, "noexec") && strings.HasPrefix(source, "/pod") {
			t.Errorf("%s: got %+v, want %s %s", target, m, source, access)
		}
	}
	s := mounted(t)
	has(s, "/etc/hosts", "/pod/hosts", "rw")
	has(s, "/dev/shm", "/pod/shm", "rw")
	s = made(t, fakeHost(), func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.ReadonlyRootfs = true
		in.Pod.Files.Hostname = ""
		c.Mounts = []*runtime.Mount{{HostPath: "/etc/hosts", ContainerPath: "/etc/../etc/hosts/"}}
	})
	has(s, "/etc/resolv.conf", "/pod/resolv.conf", "ro")
	has(s, "/etc/hostname", "/etc/hostname", "ro")
	has(s, "/etc/hosts", "/etc/hosts", "rw")
	has(s, "/dev/shm", "/pod/shm", "rw")
	s = made(t, fakeHost(), func(in *input, _ *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) { in.Pod.Files = steps.Files{} })
	has(s, "/etc/resolv.conf", "/etc/resolv.conf", "ro")
	has(s, "/dev/shm", "/dev/shm", "rw")
}

func TestMountsAreOrderedParentsFirst(t *testing.T) {
	dir := t.TempDir()
	s := made(t, fakeHost(), func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		in.Volumes.Mounts = []steps.Volume{{Source: "/v1", Target: "/a/b"}, {Source: "/v2", Target: "/a"}}
		c.Mounts = []*runtime.Mount{{HostPath: dir, ContainerPath: "/a/b/c"}, {HostPath: dir, ContainerPath: "/a/b"}, {HostPath: dir, ContainerPath: "/rel"}, {HostPath: dir, ContainerPath: "/etc"}}
	})
	var order []string
	for _, m := range s.Mounts {
		order = append(order, m.Destination)
	}
	for i, d := range order {
		for _, later := range order[i+1:] {
			if strings.HasPrefix(d, later+"/") {
				t.Errorf("%s comes before %s", d, later)
			}
		}
	}
	if mountAt(s, "/a/b").Source != dir || mountAt(s, "/rel") == nil {
		t.Errorf("got %v", order)
	}
}

func TestMountOfDevReplacesWhatIsBelow(t *testing.T) {
	s := mounted(t, &runtime.Mount{HostPath: "/dev", ContainerPath: "/dev"})
	for _, d := range []string{"/dev/pts", "/dev/shm", "/dev/mqueue"} {
		if mountAt(s, d) != nil {
			t.Errorf("%s is mounted over the node's /dev", d)
		}
	}
}

// Case 63: propagation and read-only as named.
func TestMountOptions(t *testing.T) {
	for _, c := range []struct {
		mount *runtime.Mount
		want  []string
	}{
		{&runtime.Mount{}, []string{"rbind", "rprivate", "rw"}},
		{&runtime.Mount{Readonly: true}, []string{"rbind", "rprivate", "ro"}},
		{&runtime.Mount{Readonly: true, RecursiveReadOnly: true}, []string{"rbind", "rprivate", "rro"}},
		{&runtime.Mount{Propagation: runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, Readonly: true}, []string{"rbind", "rslave", "ro"}},
		{&runtime.Mount{Propagation: runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL}, []string{"rbind", "rshared", "rw"}},
		{&runtime.Mount{MountOptions: []string{"noexec", "nosuid"}}, []string{"rbind", "rprivate", "rw", "noexec", "nosuid"}},
	} {
		if got := mountOptions(c.mount); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.mount, got, c.want)
		}
	}
}

func TestPropagationNeedsASharedMount(t *testing.T) {
	both, down := runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL, runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	for _, c := range []struct {
		optional string
		p        runtime.MountPropagation
		ok       bool
	}{
		{"shared:1", both, true}, {"shared:1", down, true}, {"master:1", down, true}, {"master:1", both, false}, {"", down, false}, {"", both, false},
		{"shared:2 master:1", both, true},
	} {
		mounts := []*mountinfo.Info{{Mountpoint: "/", Optional: "shared:9"}, {Mountpoint: "/a", Optional: "shared:9"}, {Mountpoint: "/a", Optional: c.optional}}
		err := checkSharedIn(mounts, "/a/b", c.p)
		if (err == nil) != c.ok {
			t.Errorf("%q, %s: %v", c.optional, c.p, err)
		}
		if err != nil && (!errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "/a ")) {
			t.Error(err)
		}
	}
}

func TestMountRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	for name, m := range map[string]*runtime.Mount{
		"host_path":           {HostPath: "relative", ContainerPath: "/a"},
		"host_path ":          {ContainerPath: "/a"},
		"container_path":      {HostPath: "/tmp"},
		"container_path ":     {HostPath: "/tmp", ContainerPath: "../x"},
		"root":                {HostPath: "/tmp", ContainerPath: "/a/.."},
		"zero byte":           {HostPath: "/tmp", ContainerPath: "/a\x00b"},
		"recursive_read_only": {HostPath: "/tmp", ContainerPath: "/a", RecursiveReadOnly: true},
		"PRIVATE":             {HostPath: "/tmp", ContainerPath: "/a", Readonly: true, RecursiveReadOnly: true, Propagation: runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL},
		"mount_options":       {HostPath: "/tmp", ContainerPath: "/a", MountOptions: []string{"upperdir=/"}},
		"only one of":         {HostPath: "/tmp", ContainerPath: "/a", Image: &runtime.ImageSpec{Image: "x"}},
		"mounts[0].readonly":  {ContainerPath: "/a", Image: &runtime.ImageSpec{Image: "x"}},
		"propagation":         {HostPath: "/tmp", ContainerPath: "/a", Propagation: 77},
		"mount source":        {HostPath: filepath.Join(file, "below"), ContainerPath: "/a"},
		// CVE-2021-43784: what is too long for a path must not come near runc's messages.
		"host_path: it has 65541 bytes":      {HostPath: "/tmp/" + strings.Repeat("x", 1<<16), ContainerPath: "/a"},
		"container_path: it has 65538 bytes": {HostPath: "/tmp", ContainerPath: "/a" + strings.Repeat("x", 1<<16)},
	} {
		err := refused(t, fakeHost(), func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			c.Mounts = []*runtime.Mount{m}
		})
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountSources(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "link", "new", "dir")
	s := mounted(t, &runtime.Mount{HostPath: filepath.Join(dir, "link"), ContainerPath: "/a"}, &runtime.Mount{HostPath: missing, ContainerPath: "/b"})
	if got := mountAt(s, "/a").Source; got != dir {
		t.Errorf("the link is mounted as %s", got)
	}
	if got := mountAt(s, "/b").Source; got != filepath.Join(dir, "new/dir") {
		t.Errorf("the missing source is %s", got)
	}
}

func TestRootPropagation(t *testing.T) {
	b := &build{spec: &specs.Spec{Linux: &specs.Linux{}}}
	for _, c := range []struct {
		p    runtime.MountPropagation
		want string
	}{{0, ""}, {1, "rslave"}, {2, "rshared"}, {1, "rshared"}} {
		if b.raisePropagation(c.p); b.spec.Linux.RootfsPropagation != c.want {
			t.Errorf("after %s: %q, want %q", c.p, b.spec.Linux.RootfsPropagation, c.want)
		}
	}
}
