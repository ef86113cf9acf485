// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs"
	"github.com/sandflow-cri/sandflow/steps/volumes"
)

var old = time.Unix(1_000_000_000, 0)

// image has the volumes of CASES 62 and links that try to get out (CASES 93).
func image(t *testing.T, host string) v1.Image {
	t.Helper()
	type f = snapshottest.File
	return snapshottest.Image(t, v1.Config{Volumes: map[string]struct{}{
		"/data": {}, "/d2": {}, "d2/below/": {}, "/none/at/all": {}, "/abs": {}, "/up": {}, "/mounted/": {},
	}}, snapshottest.Layer(t,
		f{Name: "data/", UID: 65534, GID: 65533, Mode: 0o750},
		f{Name: "d2/", Mode: 0o1777}, f{Name: "d2/below/"}, f{Name: "d2/below/x", Body: "x"},
		f{Name: "d2/f", Body: "hello", Mode: 0o640, UID: 7, XAttrs: map[string]string{"user.k": "v"}},
		f{Name: "d2/hard", HardLink: "d2/f", Mode: 0o640, UID: 7, XAttrs: map[string]string{"user.k": "v"}}, f{Name: "d2/soft", Link: "/etc/passwd"},
		f{Name: "abs", Link: host}, f{Name: "up", Link: "../../../.." + host},
		f{Name: "mounted/"}, f{Name: "mounted/no", Body: "no"},
		f{Name: "file", Body: "file"},
		f{Name: "sub/"}, f{Name: "sub/dir/"}, f{Name: "sub/dir/f", Body: "sub"}, f{Name: "sub/file", Body: "file"},
		f{Name: "sub/out", Link: host}, f{Name: "sub/up", Link: "../../.."}, f{Name: "sub/in", Link: "dir"},
	))
}

type lab struct {
	store  *snapshot.Store
	config steps.Config
	image  snapshot.Image
	host   string // a directory that no container may reach
}

func newLab(t *testing.T) *lab {
	t.Helper()
	dir := snapshottest.Dir(t)
	l := &lab{store: snapshottest.Open(t, snapshottest.Config(dir)), host: filepath.Join(dir, "host")}
	l.config = steps.Config{State: filepath.Join(dir, "run"), Root: filepath.Join(dir, "lib")}
	for _, d := range []string{l.config.State, l.config.Root, l.host} {
		if err := os.Mkdir(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(l.host, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ref := snapshottest.Serve(t, nil).Push(t, "a:t", image(t, l.host))
	img, err := l.store.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.image = img
	return l
}

// values are the request with the mounts, and the rootfs, made by its own action.
func (l *lab) values(t *testing.T, id string, mounts ...*runtime.Mount) []engine.Value {
	t.Helper()
	given := []engine.Value{
		steps.ContainerRequest.With(steps.Ctr{
			Config: steps.Proto[*runtime.ContainerConfig]{M: &runtime.ContainerConfig{Mounts: mounts}},
			Image:  steps.Image{ID: l.image.ID, Config: l.image.Spec.Config},
		}),
		steps.ContainerPod.With(steps.PodView{Pod: steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: &runtime.PodSandboxConfig{}}}}),
	}
	a := rootfs.New(l.config, l.store)
	r, err := engine.NewRun(a, steps.Container, steps.Create, id, given...)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Undo(context.WithoutCancel(t.Context()), r); err != nil {
			t.Error(err)
		}
	})
	return r.Values()
}

func (l *lab) imageMount(at, sub string) *runtime.Mount {
	return &runtime.Mount{ContainerPath: at, Image: &runtime.ImageSpec{Image: l.image.ID}, ImageSubPath: sub, Readonly: true}
}

func TestSuite(t *testing.T) {
	l := newLab(t)
	enginetest.Suite(t, enginetest.Subject{
		New:      func(*testing.T) engine.Action { return volumes.New(l.config, l.store) },
		Workflow: steps.Container,
		Flow:     steps.Create,
		Values: func(t *testing.T, id string) []engine.Value {
			t.Helper()
			return l.values(t, id, &runtime.Mount{ContainerPath: "/mounted", HostPath: "/"},
				l.imageMount("/img", ""), l.imageMount("/sub", "sub/dir"), l.imageMount("/f", "sub/in/f"))
		},
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			return snapshottest.World(t, l.store, l.config.State, l.config.Root)
		},
		Check: l.check,
	})
	if _, err := os.Stat(filepath.Join(l.host, "secret")); err != nil {
		t.Error(err)
	}
}

// check looks at the slot and what it points at.
func (l *lab) check(t *testing.T, r *engine.Run) {
	t.Helper()
	v, err := steps.ContainerVolumes.Need(r)
	if err != nil {
		t.Fatal(err)
	}
	source, targets := map[string]string{}, []string{}
	for _, m := range v.Mounts {
		source[m.Target] = m.Source
		targets = append(targets, m.Target)
		if isImage := slices.Contains([]string{"/img", "/sub", "/f"}, m.Target); isImage != m.ReadOnly || isImage != (m.ImageRef == l.image.ID) {
			t.Errorf("mount %+v", m)
		}
	}
	if want := "/abs /d2 /d2/below /data /none/at/all /up /img /sub /f"; strings.Join(targets, " ") != want {
		t.Errorf("targets %v, want %s", targets, want)
	}
	owner(t, source["/data"], 65534, 65533, os.ModeDir|0o750)
	owner(t, source["/d2"], 0, 0, os.ModeDir|os.ModeSticky|0o777)
	owner(t, source["/none/at/all"], 0, 0, os.ModeDir|0o755)
	owner(t, filepath.Join(source["/d2"], "f"), 7, 0, 0o640)
	for _, p := range []string{source["/data"], source["/d2"], source["/d2"] + "/below", source["/d2"] + "/f"} {
		if st, err := os.Lstat(p); err != nil || !st.ModTime().Equal(old) {
			t.Errorf("time of %s: %v, %v", p, st.ModTime(), err)
		}
	}
	for path, want := range map[string]string{"/d2/below/x": "x", "/d2/hard": "hello"} {
		if b, err := os.ReadFile(source["/d2"] + strings.TrimPrefix(path, "/d2")); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	f, h := stat(t, source["/d2"]+"/f"), stat(t, source["/d2"]+"/hard")
	if f.Ino != h.Ino {
		t.Error("the hard link became a copy")
	}
	if to, err := os.Readlink(source["/d2"] + "/soft"); err != nil || to != "/etc/passwd" {
		t.Errorf("link to %q, %v", to, err)
	}
	probe := filepath.Join(source["/d2"], "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if unix.Setxattr(probe, "user.k", []byte("v"), 0) == nil { // a tmpfs may have none of the user's
		value := make([]byte, 10)
		if n, err := unix.Getxattr(source["/d2"]+"/f", "user.k", value); err != nil || string(value[:n]) != "v" {
			t.Errorf("the extended attribute is %q, %v", value[:max(n, 0)], err)
		}
	}
	if err := os.Remove(probe); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/abs", "/up"} {
		if e, err := os.ReadDir(source[p]); err != nil || len(e) != 0 {
			t.Errorf("the link %s led to %v, %v", p, e, err)
		}
	}
	for p, want := range map[string]string{source["/img"] + "/sub/file": "file", source["/sub"] + "/f": "sub", source["/f"]: "sub"} {
		if b, err := os.ReadFile(p); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	if err := os.WriteFile(source["/img"]+"/new", nil, 0o600); err == nil {
		t.Error("an image mount can be written to")
	}
}

func stat(t *testing.T, path string) *syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return &st
}

func owner(t *testing.T, path string, uid, gid uint32, mode os.FileMode) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Error(err)
		return
	}
	if s := stat(t, path); s.Uid != uid || s.Gid != gid || st.Mode() != mode {
		t.Errorf("%s: %d:%d %v, want %d:%d %v", path, s.Uid, s.Gid, st.Mode(), uid, gid, mode)
	}
}

// CASES 64: a sub-path that is missing or leads out fails, and no mount is left.
func TestBadSubPaths(t *testing.T) {
	l := newLab(t)
	a := volumes.New(l.config, l.store)
	for i, c := range []struct {
		sub string
		is  func(error) bool
	}{
		{"nosuch", errdefs.IsNotFound},
		{"sub/out", errdefs.IsInvalidArgument},
		{"sub/out/secret", errdefs.IsInvalidArgument},
		{"sub/up", errdefs.IsInvalidArgument},
		{"..", errdefs.IsInvalidArgument},
		{"sub/../../x", errdefs.IsInvalidArgument},
		{"/sub", errdefs.IsInvalidArgument},
	} {
		id := "c" + string(rune('0'+i))
		values := l.values(t, id, l.imageMount("/img", c.sub))
		before := snapshottest.World(t, l.store, l.config.State, l.config.Root)
		r, err := engine.NewRun(a, steps.Container, steps.Create, id, values...)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Do(t.Context(), r); err == nil || !c.is(err) {
			t.Errorf("sub-path %s: %v", c.sub, err)
		}
		if err := a.Undo(t.Context(), r); err != nil {
			t.Error(err)
		}
		if after := snapshottest.World(t, l.store, l.config.State, l.config.Root); !slices.Equal(before, after) {
			t.Errorf("sub-path %s left\n%s\nof\n%s", c.sub, strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	}
}

// The image's content is kept while it is mounted, whoever removes the image.
func TestRemoveMountedImage(t *testing.T) {
	l := newLab(t)
	a := volumes.New(l.config, l.store)
	r, err := engine.NewRun(a, steps.Container, steps.Create, "c", l.values(t, "c", l.imageMount("/img", "sub"))...)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := l.store.RemoveImage(t.Context(), l.image.ID); err != nil {
		t.Error(err)
	}
	v, err := steps.ContainerVolumes.Need(r)
	if err != nil {
		t.Fatal(err)
	}
	source := v.Mounts[len(v.Mounts)-1].Source
	if b, err := os.ReadFile(filepath.Join(source, "file")); err != nil || string(b) != "file" {
		t.Errorf("read %q, %v", b, err)
	}
	if err := a.Undo(t.Context(), r); err != nil {
		t.Error(err)
	}
}
