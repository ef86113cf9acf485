// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase89ImageLabels gives an image labels that mean something to others: no record of
// a container has them, nor has its status.
func TestCase89ImageLabels(t *testing.T) {
	n := newNode(t, options{})
	image := n.image("labels:1", func(c *v1.Config) {
		c.Labels = map[string]string{
			"io.kubernetes.pod.name": "other", "io.cri-containerd.kind": "sandbox", "io.cri-containerd.pinned": "pinned",
			"containerd.io/restart.status": "running", "containerd.io/restart.loguri": "binary:///bin/sh?-c=id",
			"containerd.io/gc.ref.content.0": "sha256:" + strings.Repeat("0", 64), "sandflow.io/kind": "pull", "long": strings.Repeat("x", 100000),
		}
		for i := range 5000 {
			c.Labels[fmt.Sprintf("many.example/%d", i)] = "v"
		}
	})
	n.before = n.count()
	cfg := n.pod("labelled")
	pod := n.run(cfg)
	c := n.ctrOf(image, "c", "sleep", "1000")
	c.Labels = map[string]string{"mine": "yes"}
	id := n.started(pod, cfg, c)
	if got := n.status(id).GetLabels(); len(got) != 1 || got["mine"] != "yes" {
		t.Errorf("the status has the labels %v", got)
	}
	if n.imageStatus(image).GetPinned() {
		t.Error("an image can pin itself")
	}
	for what, labels := range n.storedLabels() {
		for key, value := range labels {
			if strings.HasPrefix(key, "containerd.io/restart") || strings.HasPrefix(key, "many.example/") || key == "io.kubernetes.pod.name" ||
				key == "io.cri-containerd.pinned" || len(value) > 4096 {
				t.Errorf("%s has the label %s=%.100s", what, key, value)
			}
		}
	}
	n.remove(pod)
	n.same()
}

// storedLabels are the labels of all that containerd keeps records of.
func (n *node) storedLabels() map[string]map[string]string {
	n.t.Helper()
	c, err := client.New(n.daemon.Containerd)
	must(n.t, err)
	defer func() { _ = c.Close() }()
	ctx := namespaces.WithNamespace(n.t.Context(), "k8s.io")
	all := map[string]map[string]string{}
	images, err := c.ImageService().List(ctx)
	must(n.t, err)
	for _, i := range images {
		all["image "+i.Name] = i.Labels
	}
	leases, err := c.LeasesService().List(ctx)
	must(n.t, err)
	for _, l := range leases {
		all["lease "+l.ID] = l.Labels
	}
	containers, err := c.ContainerService().List(ctx)
	must(n.t, err)
	for _, k := range containers {
		all["container "+k.ID] = k.Labels
	}
	must(n.t, c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		all["snapshot "+i.Name] = i.Labels
		return nil
	}))
	return all
}

// TestCase91HugePasswd creates containers from images whose user files are made to hurt:
// it fails fast, takes no memory, and other calls go on.
func TestCase91HugePasswd(t *testing.T) {
	n := newNode(t, options{})
	const size = 96 << 20
	peak := func() int { return n.memory(n.daemon.PID(), "VmHWM") }
	huge := func(path string) v1.Layer {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			err := tw.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: size})
			if err == nil {
				_, err = io.CopyN(tw, zeros{}, size)
			}
			w.CloseWithError(errors.Join(err, tw.Close()))
		}()
		return compressed(n.t, r)
	}
	special := func(path string, kind byte) v1.Layer {
		r, w := io.Pipe()
		go func() {
			tw := tar.NewWriter(w)
			err := tw.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Typeflag: kind})
			w.CloseWithError(errors.Join(err, tw.Close()))
		}()
		return compressed(n.t, r)
	}
	asBob := func(c *v1.Config) { c.User = "bob:crew" }
	line := strings.Repeat("x", 8<<20)
	refs := map[string]string{
		"limit":              n.image("hostile/passwd:1", asBob, huge("etc/passwd")),
		"above the limit":    n.image("hostile/group:1", asBob, layer(t, file{Name: "etc/passwd", Body: "bob:x:7:7::/:\n"}), huge("etc/group")),
		"limit of":           n.image("hostile/line:1", asBob, layer(t, file{Name: "etc/passwd", Body: line})),
		"not a regular file": n.image("hostile/fifo:1", asBob, special("etc/passwd", tar.TypeFifo)),
		"not a regular":      n.image("hostile/dir:1", asBob, special("etc/group", tar.TypeDir), layer(t, file{Name: "etc/passwd", Body: "bob:x:7:7::/:\n"})),
	}
	must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.daemon.PID()), []byte("5"), 0)) // resets the peak
	before := peak()
	n.before = n.count()
	cfg := n.pod("hostile")
	pod := n.run(cfg)
	for words, ref := range refs {
		n.notCreated(pod, cfg, n.ctrOf(ref, "by-name", "true"), words)
		c := n.ctrOf(ref, "by-uid", "true")
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 33}
		if id, err := n.tryCreate(t.Context(), pod, cfg, c); err == nil {
			n.removeContainer(id) // within bounds is as good
		}
	}
	if grown := peak() - before; grown > 48<<10 {
		t.Errorf("the daemon grew by %d KiB", grown)
	}
	n.remove(pod)
	n.same()
}

// memory is a line of a process's status, in KiB.
func (n *node) memory(pid int, key string) int {
	n.t.Helper()
	for line := range strings.Lines(read(n.t, fmt.Sprintf("/proc/%d/status", pid))) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key+":" {
			kib, err := strconv.Atoi(f[1])
			must(n.t, err)
			return kib
		}
	}
	n.t.Fatalf("no %s of process %d", key, pid)
	return 0
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestCase93LinksInTheImage has directories that the runtime writes into be links to the
// node: what is there never changes.
func TestCase93LinksInTheImage(t *testing.T) {
	n := newNode(t, options{})
	host := t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "file"), []byte("mine"), 0o600))
	must(t, os.Mkdir(filepath.Join(host, "fs"), 0o700))
	before := tree(t, host)
	mounted := func(c *cri.ContainerConfig) {
		c.Mounts = []*cri.Mount{{HostPath: "/usr", ContainerPath: "/link/new", Readonly: true}, {HostPath: "/etc/hostname", ContainerPath: "/link/file", Readonly: true}}
	}
	refs := map[string]string{}
	cases := []struct {
		link   string
		config func(*v1.Config)
		change func(*cri.ContainerConfig)
	}{
		{link: "etc"},
		{link: "dev"},
		{link: "proc"},
		{link: "sys"},
		{link: "work", change: func(c *cri.ContainerConfig) { c.WorkingDir = "/work/deep/below" }},
		{link: "vol", config: func(c *v1.Config) { c.Volumes = map[string]struct{}{"/vol/data": {}, "/vol": {}} }},
		{link: "link", change: mounted},
	}
	for i, target := range []string{host, "../../../../../.." + host} {
		for _, k := range cases { // the layer replaces the directory by the link
			refs[k.link+target] = n.image(fmt.Sprintf("links/%s:%d", k.link, i), k.config, layer(t, file{Name: ".wh." + k.link}), layer(t, file{Name: k.link, Link: target}))
		}
	}
	n.before = n.count()
	cfg := n.pod("links")
	pod := n.run(cfg)
	for _, target := range []string{host, "../../../../../.." + host} {
		for _, k := range cases {
			c := n.ctrOf(refs[k.link+target], "c", "true")
			if k.change != nil {
				k.change(c)
			}
			if id, err := n.tryCreate(t.Context(), pod, cfg, c); err == nil {
				_ = n.tryStart(t.Context(), id) // the OCI runtime may refuse it, too
				n.removeContainer(id)
			}
			if now := tree(t, host); now != before {
				t.Fatalf("/%s is a link to %s: what is there was\n%s\nand is\n%s", k.link, target, before, now)
			}
		}
	}
	odd := n.pod("odd")
	odd.Metadata.Name = "../" + filepath.Base(host)
	_, err := n.tryRun(t.Context(), odd, "")
	refused(t, err, "name")
	for _, change := range []func(*cri.ContainerConfig){
		func(c *cri.ContainerConfig) { c.Metadata.Name = "a/../b" },
		func(c *cri.ContainerConfig) { c.LogPath = "../../out.log" },
	} {
		c := n.ctr("c", "true")
		change(c)
		n.notCreated(pod, cfg, c, "")
	}
	n.remove(pod)
	n.same()
}

// tree lists all below a directory: kind, mode, owner, size, content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %o %d:%d %d %d\n", path, st.Mode, st.Uid, st.Gid, st.Size, st.Nlink)
		return nil
	}))
	return b.String()
}

// TestCase94Sockets looks for abstract sockets and at the modes of the others, and of the
// directories that they are in.
func TestCase94Sockets(t *testing.T) {
	n := newNode(t, options{})
	cfg := hostNetwork(n.pod("neighbour"))
	pod := n.run(cfg)
	c := n.ctr("c", "sh", "-c", "grep -c ' @' /proc/net/unix; grep -c "+filepath.Base(n.daemon.State)+" /proc/net/unix; true")
	c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	// The container sees the very sockets of the node: none is abstract.
	if got := strings.Fields(n.output(pod, cfg, c)); len(got) != 2 || got[0] != "0" || got[1] == "0" {
		t.Errorf("abstract sockets, others: %v", got)
	}
	sockets := 0
	must(t, filepath.WalkDir(n.daemon.State, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSocket {
			return err
		}
		sockets++
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("socket %s has mode %v", path, info.Mode())
		}
		return nil
	}))
	if sockets < 4 {
		t.Errorf("%d sockets found, expected the daemon's and the shim's", sockets)
	}
	n.remove(pod)
	n.same()
}
