// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/rootfs"
)

func world(t *testing.T) (*snapshot.Store, steps.Config, snapshot.Image) {
	t.Helper()
	dir := snapshottest.Dir(t)
	s := snapshottest.Open(t, snapshottest.Config(dir))
	reg := snapshottest.Serve(t, nil)
	ref := reg.Push(t, "a:t", snapshottest.Image(t, v1.Config{}, snapshottest.Layer(t, snapshottest.File{Name: "f", Body: "x"})))
	img, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := steps.Config{State: filepath.Join(dir, "run"), Root: filepath.Join(dir, "lib")}
	for _, d := range []string{c.State, c.Root} {
		if err := os.Mkdir(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return s, c, img
}

func values(img snapshot.Image, pod *runtime.PodSandboxConfig) []engine.Value {
	return []engine.Value{
		steps.ContainerRequest.With(steps.Ctr{
			Config: steps.Proto[*runtime.ContainerConfig]{M: &runtime.ContainerConfig{}},
			Image:  steps.Image{ID: img.ID, Config: img.Spec.Config},
		}),
		steps.ContainerPod.With(steps.PodView{Pod: steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: pod}}}),
	}
}

func TestSuite(t *testing.T) {
	s, c, img := world(t)
	enginetest.Suite(t, enginetest.Subject{
		New:      func(*testing.T) engine.Action { return rootfs.New(c, s) },
		Workflow: steps.Container,
		Flow:     steps.Create,
		Values: func(*testing.T, string) []engine.Value {
			return values(img, &runtime.PodSandboxConfig{})
		},
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			return snapshottest.World(t, s, c.State, c.Root)
		},
		Check: func(t *testing.T, r *engine.Run) {
			t.Helper()
			fs, err := steps.ContainerRootfs.Need(r)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(fs.Path, "f")); err != nil || string(b) != "x" {
				t.Errorf("the image's file: %q, %v", b, err)
			}
			if fs.Key != r.ID() || fs.Snapshotter != "overlayfs" || fs.Path != filepath.Join(c.ContainerDir(r.ID()), "rootfs") {
				t.Errorf("slot: %+v", fs)
			}
		},
	})
}

func TestFailures(t *testing.T) {
	s, c, img := world(t)
	a := rootfs.New(c, s)
	before := snapshottest.World(t, s, c.State)
	gone := img
	gone.ID = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	r, err := engine.NewRun(a, steps.Container, steps.Create, "none", values(gone, &runtime.PodSandboxConfig{})...)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Do(t.Context(), r); !errdefs.IsNotFound(err) {
		t.Errorf("no image: %v", err)
	}
	if err := a.Undo(t.Context(), r); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"..", "a/b", ""} { // CASES 93
		r, err := engine.NewRun(a, steps.Container, steps.Create, id, values(img, &runtime.PodSandboxConfig{})...)
		if err != nil {
			continue
		}
		if err := a.Do(t.Context(), r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("do with id %q: %v", id, err)
		}
		if err := a.Undo(t.Context(), r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("undo with id %q: %v", id, err)
		}
	}
	if after := snapshottest.World(t, s, c.State); len(after) != len(before) {
		t.Errorf("left: %v", after)
	}
}

// A pod with a user namespace sees the image's files as its own.
func TestUserNamespace(t *testing.T) {
	s, c, img := world(t)
	a := rootfs.New(c, s)
	const base = 70000
	ids := []*runtime.IDMapping{{HostId: base, ContainerId: 0, Length: 1000}}
	pod := &runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtime.NamespaceOption{UsernsOptions: &runtime.UserNamespace{Mode: runtime.NamespaceMode_POD, Uids: ids, Gids: ids}},
	}}}
	r, err := engine.NewRun(a, steps.Container, steps.Create, "u", values(img, pod)...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Undo(t.Context(), r); err != nil {
			t.Error(err)
		}
	}()
	if err := a.Do(t.Context(), r); errdefs.IsFailedPrecondition(err) {
		t.Skipf("this kernel or file system cannot: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(c.ContainerDir("u"), "rootfs", "f"))
	if err != nil {
		t.Fatal(err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Uid != base || sys.Gid != base {
		t.Errorf("owner %v, want %d", st.Sys(), base)
	}
}
