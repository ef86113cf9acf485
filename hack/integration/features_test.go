// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const cdiSpec = `{"cdiVersion": "0.6.0", "kind": "lab.example/thing", "devices": [
	{"name": "one", "containerEdits": {"env": ["ONE=%[1]s"], "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/null", "permissions": "rw"}],
		"mounts": [{"hostPath": %[2]q, "containerPath": "/thing", "options": ["ro", "bind"]}]}},
	{"name": "two", "containerEdits": {"env": ["TWO=2"]}}]}`

// TestCDIDevices gives containers devices of CDI, by the field and by annotations, under their
// present specification; one that is not there is refused, and annotations of an image mean nothing.
func TestCDIDevices(t *testing.T) {
	lab(t) // whose /run is its own
	const dir = "/var/run/cdi"
	files := t.TempDir()
	must(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.WriteFile(filepath.Join(files, "f"), []byte("of the device\n"), 0o644))
	write := func(value string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, "thing.json"), fmt.Appendf(nil, cdiSpec, value, files), 0o644))
	}
	write("1")
	n := newNode(t, options{})
	cfg := n.pod("devices")
	pod := n.run(cfg)
	const script = `echo "[$ONE$TWO]"; [ -c /dev/thing ] && echo x > /dev/thing && echo device; cat /thing/f 2>/dev/null; true`
	for what, k := range map[string]struct {
		change func(*cri.ContainerConfig)
		want   string
	}{
		"none":  {func(*cri.ContainerConfig) {}, "[]\n"},
		"field": {func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "lab.example/thing=one"}} }, "[1]\ndevice\nof the device\n"},
		"annotation": {func(c *cri.ContainerConfig) {
			c.Annotations = map[string]string{"cdi.k8s.io/lab": "lab.example/thing=one"}
		}, "[1]\ndevice\nof the device\n"},
		"both": {func(c *cri.ContainerConfig) {
			c.CDIDevices = []*cri.CDIDevice{{Name: "lab.example/thing=one"}}
			c.Annotations = map[string]string{"cdi.k8s.io/lab": "lab.example/thing=one,lab.example/thing=two"}
		}, "[12]\ndevice\nof the device\n"},
	} {
		c := n.ctr("c", "sh", "-c", script)
		k.change(c)
		if got := n.output(pod, cfg, c); got != k.want {
			t.Errorf("%s: %q, want %q", what, got, k.want)
		}
	}
	write("changed")
	c := n.ctr("c", "sh", "-c", script)
	c.CDIDevices = []*cri.CDIDevice{{Name: "lab.example/thing=one"}}
	has(t, "a specification that has changed", n.output(pod, cfg, c), "[changed]")
	for name, change := range map[string]func(*cri.ContainerConfig){
		"lab.example/thing=none": func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "lab.example/thing=none"}} },
		"lab.example/other=one": func(c *cri.ContainerConfig) {
			c.Annotations = map[string]string{"cdi.k8s.io/x": "lab.example/other=one"}
		},
		"no name": func(c *cri.ContainerConfig) { c.Annotations = map[string]string{"cdi.k8s.io/x": "no name"} },
	} {
		c := n.ctr("c", "true")
		change(c)
		_, err := n.tryCreate(t.Context(), pod, cfg, c)
		refused(t, err, name, codes.InvalidArgument)
	}
	n.remove(pod)
	n.same()
}

// TestTagMovesUnderAContainer has a tag lead to another image while a container of the first runs:
// what the container is of stays what it was, can be looked up, and outlives even its image.
func TestTagMovesUnderAContainer(t *testing.T) {
	n := newNode(t, options{})
	const ref = "cases.example/moving:1"
	old := n.imageStatus(n.image("moving:1", nil, layer(t, file{Name: "which", Body: "old\n"})))
	cfg := n.pod("moved")
	pod := n.run(cfg)
	ctr, waits := n.started(pod, cfg, n.ctrOf(ref, "runs", "sleep", "1000")), n.created(pod, cfg, n.ctrOf(ref, "waits", "sleep", "1000"))
	before := n.status(ctr)
	now := n.imageStatus(n.image("moving:1", nil, layer(t, file{Name: "which", Body: "new\n"})))
	if now.GetId() == old.GetId() {
		t.Fatal("the tag has not moved")
	}
	check := func(when string, listed bool) {
		t.Helper()
		s := n.status(ctr)
		if s.GetImageId() != old.GetId() || s.GetImageRef() != before.GetImageRef() || s.GetImage().GetImage() != ref {
			t.Errorf("%s: image_id %s, image_ref %s, image %s", when, s.GetImageId(), s.GetImageRef(), s.GetImage().GetImage())
		}
		if got := n.imageStatus(s.GetImageRef()); listed != (got.GetId() == old.GetId()) {
			t.Errorf("%s: image_ref leads to %v", when, got)
		}
		if found := slices.ContainsFunc(n.listImages(), func(i *cri.Image) bool { return i.GetId() == s.GetImageId() }); found != listed {
			t.Errorf("%s: its image is listed: %v", when, found)
		}
		if got := n.exec(ctr, "cat", "/which"); got != "old\n" {
			t.Errorf("%s: the container has %q", when, got)
		}
	}
	check("after the tag has moved", true)
	n.restart()
	check("after a restart", true)
	has(t, "a new container", n.output(pod, cfg, n.ctrOf(ref, "new", "cat", "/which")), "new\n")
	_, err := n.client.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: before.GetImageRef()}})
	must(t, err)
	check("after its image was removed", false)
	must(t, n.tryStart(t.Context(), waits))
	if got := n.exec(waits, "cat", "/which"); got != "old\n" {
		t.Errorf("the container that is started last has %q", got)
	}
	n.remove(pod)
}

// TestExecIsConfined has commands run in a container under what confines its first process.
func TestExecIsConfined(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("confined")
	pod := n.run(cfg)
	for _, noNew := range []bool{false, true} {
		c := n.ctr("c", "sleep", "1000")
		c.Linux.SecurityContext.NoNewPrivs = noNew
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1000}
		c.Linux.SecurityContext.SupplementalGroups = []int64{5000}
		c.Linux.SecurityContext.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
		ctr := n.started(pod, cfg, c)
		want := fmt.Sprintf("NoNewPrivs:\t%d\n", map[bool]int{true: 1}[noNew])
		for who, path := range map[string]string{"init": "/proc/1/status", "exec": "/proc/self/status"} {
			has(t, fmt.Sprintf("no_new_privs %v of %s", noNew, who), n.exec(ctr, "cat", path), want, "Uid:\t1000\t", "Groups:\t1000 5000")
		}
		n.removeContainer(ctr)
	}
	n.remove(pod)
	n.same()
}
