// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// userNamespace pins a user namespace at path.
func userNamespace(t *testing.T, path string) {
	t.Helper()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200000, Size: 65536}}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	if err := cmd.Start(); err != nil {
		t.Skipf("no user namespaces: %v", err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := pin("/proc/"+strconv.Itoa(cmd.Process.Pid)+"/ns/user", path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unpin(path); err != nil {
			t.Error(err)
		}
	})
}

func TestSharedPIDNamespaceInUserNamespace(t *testing.T) {
	user := filepath.Join(t.TempDir(), "user")
	l := newLab(t, func(r *LaunchRequest) {
		userNamespace(t, user)
		if err := os.Chmod(filepath.Dir(filepath.Dir(filepath.Dir(r.Dir))), 0o711); err != nil {
			t.Fatal(err)
		}
		r.SharedPID, r.User = true, user
	})
	id := l.run(func(s *specs.Spec) {
		s.Linux.Namespaces[0].Path = l.shim.PIDNamespace
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: user})
		s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 200000, Size: 65536}}
		s.Linux.GIDMappings = s.Linux.UIDMappings
	}, CreateRequest{}, "sh", "-c", "cat /proc/1/comm; id -u; echo to stdout > /dev/fd/1; ls /proc/1/root/")
	if e := l.wait(id); e.Code == 0 {
		t.Error("the init can be looked into")
	}
	if got := l.logged(id); got["stdout"] != "sandflow-init\n0\nto stdout\n" || !strings.Contains(got["stderr"], "ermission denied") {
		t.Errorf("log %q", got)
	}
	pid, err := bundle.ReadProcess(filepath.Join(l.dir(), bundle.InitFile))
	if err != nil {
		t.Fatal(err)
	}
	status, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for _, want := range []string{"Uid:\t265534\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the init's status has no %q:\n%s", want, status)
		}
	}
}
