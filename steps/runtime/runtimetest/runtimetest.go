// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runtimetest makes real bundles and a real shim for tests of what
// stands on steps/runtime.
package runtimetest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// CgroupParent holds the cgroups of all containers of this test binary.
var CgroupParent = fmt.Sprintf("/sandflow-test-%d", os.Getpid())

// Root skips a test that needs root and an OCI runtime, and gives the runtime's path.
func Root(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for _, path := range []string{os.Getenv("SANDFLOW_RUNC"), filepath.Join(repository(t), "build/bin/runc")} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: set SANDFLOW_RUNC")
	}
	return path
}

func repository(t testing.TB) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatalf("find the repository: %v", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

var shim = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandflow-shim")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "containerd-shim-sandflow-v1")
	cmd := exec.Command("go", "build", "-o", path, "github.com/sandflow-cri/sandflow/cmd/containerd-shim-sandflow-v1")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	return path, cmd.Run()
})

// Shim builds the shim, once per test binary. RemoveShim removes it.
func Shim(t testing.TB) string {
	t.Helper()
	path, err := shim()
	if err != nil {
		t.Fatalf("build shim: %v", err)
	}
	return path
}

// RemoveShim removes what Shim built; for TestMain.
func RemoveShim() {
	if path, err := shim(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
}

// removeLimit is how long something may still be writing into a state directory.
const removeLimit = 5 * time.Second

// State makes a state directory with a path short enough for sockets.
func State(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// What a containerd has had done, such as cleaning up after a shim, may end after it.
		err := os.RemoveAll(dir)
		for deadline := time.Now().Add(removeLimit); err != nil && time.Now().Before(deadline); err = os.RemoveAll(dir) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("remove state: %v", err)
		}
	})
	return dir
}

// Bundle writes a bundle whose container runs args on the host's programs, read-only.
func Bundle(t testing.TB, dir, id string, change func(*specs.Spec), args ...string) {
	t.Helper()
	for _, d := range []string{"bin", "lib", "lib64", "usr", "proc", "tmp", "dev", "sys", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, "rootfs", d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := spec(id, args)
	if change != nil {
		change(s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func spec(id string, args []string) *specs.Spec {
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"},
			Capabilities: &specs.LinuxCapabilities{},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{
			CgroupsPath: filepath.Join(CgroupParent, id),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
			},
		},
	}
	for _, d := range []string{"/bin", "/lib", "/lib64", "/usr"} {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: d, Type: "bind", Source: d, Options: []string{"rbind", "ro"}})
	}
	return s
}

// RemoveCgroups removes the parent of all cgroups of tests, where it is empty.
func RemoveCgroups() {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + CgroupParent)
	for _, d := range append(dirs, "/sys/fs/cgroup"+CgroupParent) {
		_ = unix.Rmdir(d)
	}
}
