// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
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
	found := things(n.t, n.daemon.State, n.daemon.Root, "/run/containerd")
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

// TestDoorsOfTheLog puts links, a FIFO and a directory in the place of logs, as who can write
// to the logs of the node could, before a container starts and when its log is rotated: nothing
// is followed (one of the security fixes of containerd 2.4.2; CVE-2025-0750 and CVE-2026-53489
// are of that kind).
func TestDoorsOfTheLog(t *testing.T) {
	l := lab(t)
	n := newNode(t, options{Options: harness.Options{Extra: "[runtime.handlers.stock]\ntype = \"" + l.Bin("containerd-shim-runc-v2") + "\"\noptions = {BinaryName = \"" + l.Bin("runc") + "\", Root = \"/run/doors-stock\"}\n"}})
	node := t.TempDir()
	victim := filepath.Join(node, "victim")
	must(t, os.WriteFile(victim, []byte("mine"), 0o600))
	before := tree(t, node)
	for _, handler := range []string{"", "stock"} {
		cfg := n.pod("logs" + handler)
		pod, err := n.tryRun(t.Context(), cfg, handler)
		must(t, err)
		for name, put := range map[string]func(dir string) error{
			"file.log":  func(dir string) error { return os.Symlink(victim, filepath.Join(dir, "file.log")) },
			"new.log":   func(dir string) error { return os.Symlink(filepath.Join(node, "new"), filepath.Join(dir, "new.log")) },
			"fifo.log":  func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "fifo.log"), 0o666) },
			"dir.log":   func(dir string) error { return os.Mkdir(filepath.Join(dir, "dir.log"), 0o755) },
			"sub/0.log": func(dir string) error { return os.Symlink(node, filepath.Join(dir, "sub")) },
		} {
			must(t, os.MkdirAll(cfg.GetLogDirectory(), 0o755))
			must(t, put(cfg.GetLogDirectory()))
			c := n.ctr("c", "echo", "owned")
			c.LogPath = name
			id := n.created(pod, cfg, c)
			refused(t, n.tryStart(t.Context(), id), "container log")
			if s := n.status(id); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetReason() != "StartError" {
				t.Errorf("%s: %s, %s", name, s.GetState(), s.GetReason())
			}
			n.removeContainer(id)
		}
		n.rotatedIntoLink(pod, cfg, victim)
		n.remove(pod)
	}
	if now := tree(t, node); now != before || read(t, victim) != "mine" {
		t.Errorf("what the links lead to was\n%s\nand is\n%s", before, now)
	}
	n.same()
}

// rotatedIntoLink renames a running container's log and puts a link in its place: it goes on
// writing to the old file until a log can be opened.
func (n *node) rotatedIntoLink(pod string, cfg *cri.PodSandboxConfig, victim string) {
	n.t.Helper()
	id := n.started(pod, cfg, n.ctr("c", "sh", "-c", "echo before; until [ -e /go ]; do sleep 0.02; done; echo after"))
	path := filepath.Join(cfg.GetLogDirectory(), "c.log")
	waitFor(n.t, "the first line", func() bool { return rebuild(n.log(cfg, "c"), "stdout") == "before\n" })
	must(n.t, os.Rename(path, path+".1"))
	must(n.t, os.Symlink(victim, path))
	_, err := n.client.ReopenContainerLog(n.t.Context(), &cri.ReopenContainerLogRequest{ContainerId: id})
	refused(n.t, err, "symbolic link")
	n.exec(id, "touch", "/go")
	n.exited(id)
	must(n.t, os.Remove(path))
	must(n.t, os.Rename(path+".1", path))
	if got := rebuild(n.log(cfg, "c"), "stdout"); got != "before\nafter\n" {
		n.t.Errorf("the log is %q", got)
	}
}

// TestDoorsOfTheServer asks too much of the CRI socket, and uses the URL of an exec twice, for
// something else, and without its token: it listens on loopback only, and a URL works once.
func TestDoorsOfTheServer(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("large")
	cfg.Annotations = map[string]string{"a": strings.Repeat("x", 20<<20)}
	_, err := n.tryRun(t.Context(), cfg, "")
	refused(t, err, "", codes.ResourceExhausted)
	cfg.Annotations["a"] = strings.Repeat("x", 1<<20)
	_, err = n.tryRun(t.Context(), cfg, "")
	refused(t, err, "annotations", codes.InvalidArgument)

	cfg = n.pod("streams")
	pod := n.run(cfg)
	id := n.started(pod, cfg, n.ctr("c", "sleep", "1000"))
	ask := func() *url.URL {
		r, err := n.client.Exec(t.Context(), &cri.ExecRequest{ContainerId: id, Cmd: []string{"touch", "/done"}, Stdout: true})
		must(t, err)
		u, err := url.Parse(r.GetUrl())
		must(t, err)
		return u
	}
	get := func(u url.URL) int {
		r, err := http.Get(u.String())
		if err != nil {
			return 0 // hung up on
		}
		must(t, r.Body.Close())
		return r.StatusCode
	}
	first, second := ask(), ask()
	if host := net.ParseIP(first.Hostname()); !host.IsLoopback() || first.Path == second.Path {
		t.Errorf("URLs %s and %s", first, second)
	}
	if code := get(*first); code == http.StatusNotFound || code == http.StatusOK {
		t.Errorf("a client that speaks no protocol gets %d", code)
	}
	if code := get(*first); code != http.StatusNotFound {
		t.Errorf("the URL is good for twice: %d", code)
	}
	elsewhere := *second
	elsewhere.Path = strings.Replace(second.Path, "exec", "attach", 1)
	guessed := *second
	guessed.Path = "/exec/" + strings.Repeat("A", 26)
	for _, u := range []url.URL{elsewhere, *second} { // in this order: a try voids the token
		if code := get(u); code != http.StatusNotFound {
			t.Errorf("%s: %d", u.Path, code)
		}
	}
	for what, u := range map[string]url.URL{"guessed": guessed, "none": {Scheme: "http", Host: first.Host, Path: "/exec/"}} {
		if code := get(u); code != http.StatusNotFound {
			t.Errorf("token %s: %d", what, code)
		}
	}
	n.remove(pod)
	n.same()
}
