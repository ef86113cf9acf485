// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtimetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const containerdConfig = `version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
address = %q
[ttrpc]
address = %q
`

// Containerd starts a containerd of its own for one test, if it and its shim are
// among the repository's tools, and gives its socket and the shim's path.
func Containerd(t testing.TB) (address, shim string) {
	t.Helper()
	bin := filepath.Join(repository(t), "build/bin")
	daemon, shim := filepath.Join(bin, "containerd"), filepath.Join(bin, "containerd-shim-runc-v2")
	for _, p := range []string{daemon, shim} {
		if _, err := os.Stat(p); err != nil {
			t.Skipf("needs %s", p)
		}
	}
	dir := State(t)
	address = filepath.Join(dir, "c.sock")
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), filepath.Join(dir, "state"), address, address+".ttrpc")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(daemon, "--config", config) //nolint:noctx // ended in Cleanup
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = logs.Close()
	})
	for range 500 {
		if c, err := new(net.Dialer).DialContext(t.Context(), "unix", address); err == nil {
			_ = c.Close()
			return address, shim
		}
		time.Sleep(10 * time.Millisecond)
	}
	out, _ := os.ReadFile(logs.Name())
	t.Fatalf("containerd does not come up:\n%s", out)
	return "", ""
}
