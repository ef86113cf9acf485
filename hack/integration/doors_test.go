// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// stranger is a user of the node without any right.
const stranger = 1000

// asStranger runs f on a thread that is that user's. f must start no goroutine.
func asStranger(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var err error
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, stranger, stranger, stranger}, {unix.SYS_SETRESUID, stranger, stranger, stranger},
		} {
			if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 && err == nil {
				err = e
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// things are the paths below some directories. What is in a root file system is left out:
// whether it can be reached is seen at its root.
func things(t *testing.T, dirs ...string) map[string]fs.FileMode {
	t.Helper()
	all := map[string]fs.FileMode{}
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // it went meanwhile
			}
			all[path] = e.Type()
			if e.IsDir() && (e.Name() == "rootfs" || e.Name() == "fs") {
				return filepath.SkipDir
			}
			return nil
		}))
	}
	return all
}

// TestDoorsOfTheNode tries everything that the daemon keeps as another user of the node:
// nothing can be read, listed, connected to or run, though the containers of non-root users
// and of user namespaces read their pod's files.
func TestDoorsOfTheNode(t *testing.T) {
	l := lab(t)
	stock := "[runtime.handlers.stock]\ntype = \"" + l.Bin("containerd-shim-runc-v2") + "\"\noptions = {BinaryName = \"" + l.Bin("runc") + "\", Root = \"/run/doors-stock\"}\n"
	n := newNode(t, options{Options: harness.Options{Extra: stock}})
	secret := n.image("doors:1", func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}} },
		layer(t, file{Name: "data/"}, file{Name: "data/all", Body: "x", Mode: 0o4755}))
	n.before = n.count()
	var pods []string
	for _, k := range []struct {
		name, handler string
		change        func(*cri.PodSandboxConfig, *cri.ContainerConfig)
	}{
		{"plain", "", func(*cri.PodSandboxConfig, *cri.ContainerConfig) {}},
		{"stock", "stock", func(*cri.PodSandboxConfig, *cri.ContainerConfig) {}},
		{"shared", "", func(p *cri.PodSandboxConfig, c *cri.ContainerConfig) {
			p.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
			c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
		}},
		{"userns", "", func(p *cri.PodSandboxConfig, c *cri.ContainerConfig) {
			userNamespace(p.Linux.SecurityContext.NamespaceOptions)
			userNamespace(c.Linux.SecurityContext.NamespaceOptions)
		}},
	} {
		cfg := n.pod(k.name)
		c := n.ctrOf(secret, "c", "sleep", "1000")
		c.Envs = []*cri.KeyValue{{Key: "SECRET", Value: []byte("in the spec")}}
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1234}
		k.change(cfg, c)
		pod, err := n.tryRun(t.Context(), cfg, k.handler)
		must(t, err)
		pods = append(pods, pod)
		id := n.started(pod, cfg, c)
		got := n.exec(id, "sh", "-c", "id -u; cat /etc/hosts /etc/resolv.conf /etc/hostname >/dev/null && echo > /dev/shm/mine && cat /data/all")
		if got != "1234\nx" {
			t.Errorf("%s: a container of another user than root sees %q", k.name, got)
		}
	}
	n.unreachable()
	for _, pod := range pods {
		n.remove(pod)
	}
	n.same()
}

// unreachable checks that the stranger cannot use anything below state and root.
func (n *node) unreachable() {
	n.t.Helper()
	found := things(n.t, n.daemon.State, n.daemon.Root)
	sockets := 0
	var open []string
	asStranger(n.t, func() {
		for path, kind := range found {
			switch {
			case kind == fs.ModeSocket:
				sockets++
				if c, err := net.Dial("unix", path); err == nil {
					_ = c.Close()
					open = append(open, "connected to "+path)
				}
			case unix.Access(path, unix.R_OK) == nil, unix.Access(path, unix.W_OK) == nil:
				open = append(open, "can be read or written: "+path)
			case kind.IsDir() && strings.HasSuffix(path, "/rootfs") && unix.Access(path, unix.X_OK) == nil:
				open = append(open, "can be entered: "+path)
			}
		}
	})
	for _, o := range open {
		n.t.Error(o)
	}
	if len(found) < 100 || sockets < 8 {
		n.t.Errorf("looked at %d things and %d sockets, expected more", len(found), sockets)
	}
	if _, err := os.Stat(n.daemon.Socket); err != nil {
		n.t.Error(err)
	}
}
