// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// namespace is a new network namespace with interfaces first, eth0 (and their peers).
func namespace(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	const script = `ip link add first type veth peer name peer && ip link add eth0 type veth peer name peer0 &&
		ip link set eth0 up && ip link set peer0 up && ip addr add 10.9.9.1/24 dev eth0 && echo ready && cat`
	c := exec.Command("sh", "-c", script)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := &bytes.Buffer{}
	c.Stderr = stderr
	if err := c.Start(); err != nil {
		t.Skipf("no network namespace here: %v", err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Skipf("no veth here: %v: %s", err, stderr)
	}
	return filepath.Join("/proc", strconv.Itoa(c.Process.Pid), "ns/net")
}

func TestNetwork(t *testing.T) {
	u, err := New(Options{}).Network(namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	if u.GetTimestamp() <= 0 || u.GetDefaultInterface().GetName() != "eth0" || u.GetDefaultInterface().GetRxBytes() == nil {
		t.Errorf("got %v", u)
	}
	names := map[string]bool{}
	for _, i := range u.GetInterfaces() {
		names[i.GetName()] = true
	}
	if !names["first"] || !names["peer0"] || names["lo"] || names["eth0"] {
		t.Errorf("the others are %v", names)
	}
}

func TestNetworkThatIsNotThere(t *testing.T) {
	r := New(Options{})
	if u, err := r.Network(""); u != nil || err != nil {
		t.Errorf("the node's: %v, %v", u, err)
	}
	file := filepath.Join(t.TempDir(), "net")
	if _, err := r.Network(file); !errors.Is(err, errdefs.ErrNotFound) {
		t.Error(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Network(file); !errors.Is(err, errdefs.ErrNotFound) {
		t.Error(err)
	}
}
