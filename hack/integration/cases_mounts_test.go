// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase62Volumes writes to the volumes of an image as the user that owns them.
func TestCase62Volumes(t *testing.T) {
	n := newNode(t, options{})
	ref := n.image("volumes:1", func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}, "/d2": {}, "/d2/below": {}} }, layer(t,
		file{Name: "data/", UID: 65534, GID: 65534, Mode: 0o750},
		file{Name: "d2/", UID: 65534}, file{Name: "d2/f", Body: "from the image\n", Mode: 0o640, UID: 65534, XAttrs: map[string]string{"user.k": "v"}},
		file{Name: "d2/hard", HardLink: "d2/f"}, file{Name: "d2/soft", Link: "f"}, file{Name: "d2/below/", UID: 65534}, file{Name: "d2/below/x", Body: "x"},
	))
	n.before = n.count()
	cfg := n.pod("volumes")
	pod := n.run(cfg)
	c := n.ctrOf(ref, "c", "sh", "-c", `stat -c '%u:%g %a' /data; echo new > /data/f && cat /data/f; cat /d2/soft; stat -c '%h %Y' /d2/f; cat /d2/below/x; echo; echo y > /d2/below/y && echo written`)
	c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 65534}
	id := n.started(pod, cfg, c)
	n.exited(id)
	has(t, "volumes", rebuild(n.log(cfg, "c"), "stdout"), "65534:65534 750\nnew\nfrom the image\n2 1000000000\nx\nwritten\n")
	own := t.TempDir()
	must(t, os.WriteFile(filepath.Join(own, "mine"), nil, 0o644))
	c = n.ctrOf(ref, "mounted", "ls", "/data")
	c.Mounts = []*cri.Mount{{HostPath: own, ContainerPath: "/data"}}
	if got := n.output(pod, cfg, c); got != "mine\n" {
		t.Errorf("with a mount on the volume it has %q", got)
	}
	volume := filepath.Join(n.daemon.Root, "volumes", id)
	if _, err := os.Stat(volume); err != nil {
		t.Errorf("the volume is elsewhere: %v", err)
	}
	n.removeContainer(id)
	if _, err := os.Stat(volume); err == nil {
		t.Error("the volume outlives its container")
	}
	n.remove(pod)
	n.same()
}

// TestCase63Propagation mounts on the node and in the container after the start, in each mode.
func TestCase63Propagation(t *testing.T) {
	n := newNode(t, options{})
	host := t.TempDir()
	must(t, unix.Mount("tree", host, "tmpfs", 0, ""))
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	t.Cleanup(func() { must(t, unix.Unmount(host, unix.MNT_DETACH)) })
	n.before = n.count()
	cfg := privileged(n.pod("mounts"))
	pod := n.run(cfg)
	for _, k := range []struct {
		mode    cri.MountPropagation
		in, out bool // does a mount on the node appear in the container, and the reverse
	}{
		{cri.MountPropagation_PROPAGATION_PRIVATE, false, false},
		{cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, true, false},
		{cri.MountPropagation_PROPAGATION_BIDIRECTIONAL, true, true},
	} {
		for _, d := range []string{"a", "b"} {
			must(t, os.MkdirAll(filepath.Join(host, d), 0o755))
		}
		c := n.ctr("c", "sleep", "1000")
		c.Linux.SecurityContext.Privileged = true
		c.Mounts = []*cri.Mount{{HostPath: host, ContainerPath: "/m", Propagation: k.mode}}
		id := n.started(pod, cfg, c)
		if got := n.status(id).GetMounts(); len(got) != 1 || got[0].GetPropagation() != k.mode {
			t.Errorf("%v: the status says %v", k.mode, got)
		}
		must(t, unix.Mount("inner", filepath.Join(host, "a"), "tmpfs", 0, ""))
		must(t, os.WriteFile(filepath.Join(host, "a/of-node"), nil, 0o644))
		if got := strings.Contains(n.exec(id, "ls", "/m/a"), "of-node"); got != k.in {
			t.Errorf("%v: the node's mount appears: %v", k.mode, got)
		}
		n.exec(id, "sh", "-c", "mount -t tmpfs inner /m/b && touch /m/b/of-container")
		if _, err := os.Stat(filepath.Join(host, "b/of-container")); (err == nil) != k.out {
			t.Errorf("%v: the container's mount appears: %v", k.mode, err == nil)
		}
		n.removeContainer(id)
		for _, d := range []string{"a", "b"} {
			_ = unix.Unmount(filepath.Join(host, d), unix.MNT_DETACH)
		}
	}
	must(t, unix.Mount("", host, "", unix.MS_PRIVATE, ""))
	for _, mode := range []cri.MountPropagation{cri.MountPropagation_PROPAGATION_BIDIRECTIONAL, cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER} {
		c := n.ctr("private", "true")
		c.Linux.SecurityContext.Privileged = true
		c.Mounts = []*cri.Mount{{HostPath: host, ContainerPath: "/m", Propagation: mode}}
		n.notCreated(pod, cfg, c, host)
	}
	n.remove(pod)
	n.same()
}

// TestCase63RecursiveReadOnly writes below a read-only mount; only where recursion is asked for,
// mounts below it are read-only too.
func TestCase63RecursiveReadOnly(t *testing.T) {
	n := newNode(t, options{})
	host := t.TempDir()
	sub := filepath.Join(host, "sub")
	must(t, os.Mkdir(sub, 0o755))
	must(t, unix.Mount("sub", sub, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(sub, unix.MNT_DETACH)) })
	n.before = n.count()
	cfg := n.pod("mounts")
	pod := n.run(cfg)
	for _, recursive := range []bool{false, true} {
		c := n.ctr("c", "sleep", "1000")
		c.Mounts = []*cri.Mount{{HostPath: host, ContainerPath: "/m", Readonly: true, RecursiveReadOnly: recursive}}
		id := n.started(pod, cfg, c)
		if got := n.status(id).GetMounts()[0]; !got.GetReadonly() || got.GetRecursiveReadOnly() != recursive {
			t.Errorf("recursive %v: the status says %v", recursive, got)
		}
		out := n.exec(id, "sh", "-c", "touch /m/f 2>/dev/null && echo top; touch /m/sub/f 2>/dev/null && echo below; true")
		if strings.Contains(out, "top") || strings.Contains(out, "below") == recursive {
			t.Errorf("recursive %v: could be written: %q", recursive, out)
		}
		n.removeContainer(id)
	}
	for _, m := range []*cri.Mount{
		{RecursiveReadOnly: true},
		{RecursiveReadOnly: true, Readonly: true, Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		{RecursiveReadOnly: true, Readonly: true, Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL},
	} {
		m.HostPath, m.ContainerPath = host, "/m"
		c := n.ctr("illegal", "true")
		c.Mounts = []*cri.Mount{m}
		n.notCreated(pod, cfg, c, "recursive")
	}
	r, err := n.client.Status(t.Context(), &cri.StatusRequest{})
	must(t, err)
	for _, h := range r.GetRuntimeHandlers() {
		if !h.GetFeatures().GetRecursiveReadOnlyMounts() {
			t.Errorf("handler %q does not announce what it can", h.GetName())
		}
	}
	n.remove(pod)
	n.same()
}

// TestCase64ImageVolume mounts parts of an image, good and bad, starts again, and removes the
// image meanwhile.
func TestCase64ImageVolume(t *testing.T) {
	n := newNode(t, options{})
	ref := n.image("content:1", nil, layer(t,
		file{Name: "c/"}, file{Name: "c/dir/"}, file{Name: "c/dir/f", Body: "deep\n"}, file{Name: "c/file", Body: "file\n"}, file{Name: "c/out", Link: "/etc"}, file{Name: "c/up", Link: "../.."},
	))
	cfg := n.pod("image-volume")
	pod := n.run(cfg)
	mount := func(sub string) *cri.ContainerConfig {
		c := n.ctr("c", "sh", "-c", "ls /img; cat /img/f 2>/dev/null || cat /img; touch /img/new 2>/dev/null || echo read-only")
		c.Mounts = []*cri.Mount{{Image: &cri.ImageSpec{Image: ref}, ImageSubPath: sub, ContainerPath: "/img", Readonly: true}}
		return c
	}
	for range 2 { // as a container that is started again
		has(t, "a directory", n.output(pod, cfg, mount("c/dir")), "f\ndeep\nread-only\n")
	}
	has(t, "a file", n.output(pod, cfg, mount("c/file")), "/img\nfile\n")
	for _, sub := range []string{"c/missing", "c/out", "c/up", "..", "c/../../..", "/c/dir"} {
		n.notCreated(pod, cfg, mount(sub), sub)
	}
	c := n.ctr("user", "sleep", "1000")
	c.Mounts = []*cri.Mount{{Image: &cri.ImageSpec{Image: ref}, ContainerPath: "/img", Readonly: true}}
	id := n.started(pod, cfg, c)
	_, err := n.client.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
	must(t, err)
	if got := n.exec(id, "cat", "/img/c/dir/f"); got != "deep\n" {
		t.Errorf("after the image was removed the mount has %q", got)
	}
	n.remove(pod)
	n.same()
}

// TestCase65TargetNamespace joins the process namespace of another container.
func TestCase65TargetNamespace(t *testing.T) {
	n := newNode(t, options{})
	cfg, other := n.pod("debugged"), n.pod("other")
	pod, otherPod := n.run(cfg), n.run(other)
	target := n.started(pod, cfg, n.ctr("target", "sleep", "4801"))
	n.started(pod, cfg, n.ctr("neighbour", "sleep", "4802"))
	foreign := n.started(otherPod, other, n.ctr("foreign", "sleep", "4803"))
	ended := n.started(pod, cfg, n.ctr("ended", "true"))
	n.exited(ended)
	debug := func(id string) *cri.ContainerConfig {
		c := n.ctr("debug", "sleep", "4804")
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Pid, o.TargetId = cri.NamespaceMode_TARGET, id
		return c
	}
	id := n.started(pod, cfg, debug(target))
	ps := n.exec(id, "ps")
	has(t, "the debugger's processes", ps, "sleep 4801", "sleep 4804")
	misses(t, "the debugger's processes", ps, "4802", "4803")
	n.removeContainer(id)
	if s := n.status(target); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the target is %v after its debugger's end", s.GetState())
	}
	for _, bad := range []string{foreign, ended, unknown, ""} {
		n.notCreated(pod, cfg, debug(bad), "target")
	}
	// The target's end takes all of its namespace with it, as the kernel has it.
	id = n.started(pod, cfg, debug(target))
	n.removeContainer(target)
	n.exited(id)
	n.remove(pod)
	n.remove(otherPod)
	n.same()
}

// TestCase66Devices maps devices under other names, links and directories of them.
func TestCase66Devices(t *testing.T) {
	n := newNode(t, options{})
	dir := t.TempDir()
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, "link")))
	// Not among those that every container has.
	must(t, unix.Mknod(filepath.Join(dir, "fuse"), unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))))
	devices := filepath.Join(dir, "devices")
	must(t, os.Mkdir(devices, 0o755))
	for i, name := range []string{"one", "two"} {
		must(t, unix.Mknod(filepath.Join(devices, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(5+2*i)))))
	}
	cfg := privileged(n.pod("devices"))
	pod := n.run(cfg)
	for _, p := range []bool{false, true} {
		c := n.ctr("c", "sh", "-c", `(true < /dev/mine) && echo can read; [ -c /dev/all/one ] && [ -c /dev/all/two ] && echo both; head -c3 /dev/linked | wc -c; [ -e /dev/kmsg ] && echo node`)
		c.Linux.SecurityContext.Privileged = p
		c.Devices = []*cri.Device{
			{HostPath: filepath.Join(dir, "fuse"), ContainerPath: "/dev/mine", Permissions: "r"},
			{HostPath: filepath.Join(dir, "link"), ContainerPath: "/dev/linked", Permissions: "rw"},
			{HostPath: devices, ContainerPath: "/dev/all", Permissions: "rwm"},
		}
		c.Command[2] += "; (true > /dev/mine) 2>/dev/null && echo can write; true"
		out := n.output(pod, cfg, c)
		has(t, fmt.Sprintf("privileged %v", p), out, "can read\nboth\n3\n")
		if strings.Contains(out, "node") != p || strings.Contains(out, "can write") != p {
			t.Errorf("privileged %v:\n%s", p, out)
		}
		c.Devices = []*cri.Device{{HostPath: "/dev/no-such", ContainerPath: "/dev/x", Permissions: "r"}}
		n.notCreated(pod, cfg, c, "/dev/no-such")
	}
	c := n.ctr("tty", "sh", "-c", "[ -t 0 ] && [ -c /dev/kmsg ] && echo terminal")
	c.Tty, c.Stdin, c.Linux.SecurityContext.Privileged = true, true, true
	c.Mounts = []*cri.Mount{{HostPath: "/dev", ContainerPath: "/dev"}}
	console, _ := os.Lstat("/dev/console")
	has(t, "the node's /dev with a terminal", n.output(pod, cfg, c), "terminal")
	if now, _ := os.Lstat("/dev/console"); (now == nil) != (console == nil) {
		t.Error("the node's console has come or gone")
	}
	n.remove(pod)
	n.same()
}
