// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const firstID, idCount = 100000, 65536

// useUserNamespace replaces the sandbox's namespaces by ones owned by a user namespace.
func (s *sandbox) useUserNamespace() {
	c := exec.Command("cat")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: firstID, Size: idCount}}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids,
	}
	in, err := c.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Skipf("no user namespaces here: %v", err)
	}
	s.t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
	s.pid = c.Process.Pid
	for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			s.t.Fatal(err)
		}
	}
}

func chownAll(t *testing.T, root string, id int) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, id, id)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUserNamespace(t *testing.T) {
	s := newSandbox(t, "runc")
	s.useUserNamespace()
	owned := filepath.Join(s.dir, "owned")
	if err := os.Mkdir(owned, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(owned, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	out := s.run("id -u; cat /proc/self/uid_map | tr -s ' '; pwd; stat -c '%u' /; grep -q ' /sys sysfs ro,' /proc/mounts && echo sys ro; stat -c 'mount %u' /m", func(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		ids := []*runtime.IDMapping{{HostId: firstID, Length: idCount}}
		p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtime.UserNamespace{Uids: ids, Gids: ids}
		in.Pod.Namespaces.User = fmt.Sprintf("/proc/%d/ns/user", s.pid)
		c.Linux.SecurityContext.RunAsUser = value(1000)
		c.WorkingDir = "/made"
		c.Mounts = append(c.Mounts, &runtime.Mount{HostPath: owned, ContainerPath: "/m", UidMappings: ids, GidMappings: ids})
		chownAll(t, in.Rootfs.Path, firstID)
	})
	has(t, out, "1000", " 0 100000 65536", "/made", "0", "sys ro", "mount 1000")
}

// A process added to a running container is confined as its first one.
func TestExecProcessUnderRunc(t *testing.T) {
	s := newSandbox(t, "runc")
	in := request(t, func(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		s.fill(in, c, p)
		c.Command = []string{"/bin/sleep", "1000"}
		c.Linux.SecurityContext.RunAsUsername, c.Linux.SecurityContext.NoNewPrivs = "web", true
		c.Linux.SecurityContext.Seccomp = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}
	})
	b, err := newSpec(in, detect())
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Dir(in.Rootfs.Path)
	if err := writeSpec(bundle, b); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(s.dir, "state")
	// No pipes: the container would hold them open.
	if err := exec.Command(s.binary, "--root", root, "run", "--detach", "--bundle", bundle, in.ID).Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(s.binary, "--root", root, "delete", "--force", in.ID).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	p, err := ExecProcess(bundle, []string{"/bin/sh", "-c", `id -u; id -G; grep -E '^(CapInh|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t' ' '`}, false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "process.json")
	write(t, file, string(text))
	out, err := exec.Command(s.binary, "--root", root, "exec", "--process", file, in.ID).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	has(t, string(out), "33", "34 50000 50001", "CapInh: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2")
	if strings.Contains(string(out), "uid=0") {
		t.Error("it runs as root")
	}
}
