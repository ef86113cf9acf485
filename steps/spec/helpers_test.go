// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

const containerID = "c0ffee"

// image is a root file system with users.
func image(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/:/bin/sh\n# a comment\nbroken line\nbig:x:1000:1000::/:/bin/sh\n")
	write(t, filepath.Join(root, "etc/group"), "root:x:0:\nweb:x:34:\nextra:x:50000:big,web\nmore:x:50001:web\n")
	return root
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fakeHost is a cgroup v1 node with everything but LSMs, and without CAP_SYS_RESOURCE.
func fakeHost() *host {
	v1 := cgroups.Host{Mounts: map[string]string{}}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "hugetlb"} {
		v1.Mounts[c] = filepath.Join(cgroups.Root, c)
	}
	major, minor := int64(1), int64(3)
	mode := os.FileMode(0o666)
	id := uint32(0)
	return &host{
		hostName: "node", cgroups: v1, swap: func() bool { return true }, pageSizes: []uint64{2 << 20},
		caps: append([]string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}, defaultCapabilities...), oomFloor: -500, seccomp: true,
		devices: func() ([]specs.LinuxDevice, error) {
			return []specs.LinuxDevice{{Path: "/dev/null", Type: "c", Major: major, Minor: minor, FileMode: &mode, UID: &id, GID: &id}}, nil
		},
		exists: func(string) bool { return true }, profiles: &profiles{now: time.Now},
	}
}

func unifiedHost() *host {
	h := fakeHost()
	h.cgroups.Unified, h.cgroups.Root = true, cgroups.Root
	return h
}

// request is a plain container in a plain pod; change alters it.
func request(t testing.TB, change func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig)) input {
	t.Helper()
	c := &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "main"}, Image: &runtime.ImageSpec{Image: "example.org/app:1"},
		Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{}},
	}
	pod := &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "u-1"}, Hostname: "pod-0",
		Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
		}},
	}
	in := input{
		ID:     containerID,
		Config: steps.Config{State: "/run/sandflow", DefaultRuntime: "runc", CgroupDriver: cgroups.Cgroupfs, DefaultCgroupParent: "/sandflow", Runtimes: map[string]steps.Runtime{"runc": {Binary: "runc"}}},
		Ctr: steps.Ctr{
			PodID: "p0d", StopSignal: "SIGTERM",
			Image: steps.Image{Config: ocispec.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"arg"}, Env: []string{"PATH=/bin", "A=image"}}},
		},
		Pod: steps.PodView{
			ID:         "p0d",
			Files:      steps.Files{Hosts: "/pod/hosts", Hostname: "/pod/hostname", ResolvConf: "/pod/resolv.conf", Shm: "/pod/shm"},
			Namespaces: steps.Namespaces{Net: "/pod/ns/net", IPC: "/pod/ns/ipc", UTS: "/pod/ns/uts", HostName: "pod-0"},
		},
		Rootfs: steps.Rootfs{Path: image(t)},
	}
	if change != nil {
		change(&in, c, pod)
	}
	in.Ctr.Config.M, in.Pod.Pod.Config.M = c, pod
	return in
}

// made is the spec of a request that must be possible.
func made(t *testing.T, h *host, change func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig)) *specs.Spec {
	t.Helper()
	b, err := newSpec(request(t, change), h)
	if err != nil {
		t.Fatal(err)
	}
	return b.spec
}

// refused is the error of a request that must not be possible.
func refused(t *testing.T, h *host, change func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig)) error {
	t.Helper()
	_, err := newSpec(request(t, change), h)
	if err == nil {
		t.Fatal("the request was not refused")
	}
	return err
}

func mountAt(s *specs.Spec, target string) *specs.Mount {
	for i := range s.Mounts {
		if s.Mounts[i].Destination == target {
			return &s.Mounts[i]
		}
	}
	return nil
}
