// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
)

func TestAction(t *testing.T) {
	state := t.TempDir()
	in := request(t, nil)
	in.Config.State = state
	enginetest.Suite(t, enginetest.Subject{
		New:      func(*testing.T) engine.Action { return &Action{config: in.Config, host: fakeHost} },
		Workflow: steps.Container, Flow: steps.Create,
		Values: func(*testing.T, string) []engine.Value {
			return []engine.Value{
				steps.ContainerRequest.With(in.Ctr), steps.ContainerPod.With(in.Pod),
				steps.ContainerRootfs.With(in.Rootfs), steps.ContainerVolumes.With(in.Volumes),
			}
		},
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			return files(t, filepath.Join(state, "containers"))
		},
		Check: checkBundle,
	})
}

func checkBundle(t *testing.T, r *engine.Run) {
	t.Helper()
	out, err := steps.ContainerSpec.Need(r)
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{out.Bundle: 0o700, filepath.Join(out.Bundle, configFile): fileMode} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	if out.CgroupPath != "/sandflow/"+r.ID() || out.StopSignal != "SIGTERM" || !slices.Equal(out.AdditionalGIDs, []int64{0}) {
		t.Errorf("got %+v", out)
	}
	p, err := ExecProcess(out.Bundle, []string{"ls"}, true)
	if err != nil || !slices.Equal(p.Args, []string{"ls"}) || !p.Terminal || !slices.Contains(p.Env, terminal) || p.Capabilities == nil {
		t.Errorf("exec: %+v, %v", p, err)
	}
	if _, err := ExecProcess(out.Bundle, nil, false); err == nil {
		t.Error("exec of nothing was not refused")
	}
}

func files(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, _ os.DirEntry, err error) error {
		if err == nil && p != root {
			out = append(out, p)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

// A root file system that is still in the bundle is not this action's to remove.
func TestUndoLeavesTheRootFileSystem(t *testing.T) {
	c := steps.Config{State: t.TempDir()}
	root := filepath.Join(c.ContainerDir("x"), rootfsDir)
	write(t, filepath.Join(root, "file"), "")
	write(t, filepath.Join(c.ContainerDir("x"), configFile), "{}")
	if err := removeSpec(c.ContainerDir("x")); err != nil {
		t.Fatal(err)
	}
	if got := files(t, c.ContainerDir("x")); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

func TestExecOfADamagedBundle(t *testing.T) {
	dir := t.TempDir()
	if _, err := ExecProcess(dir, []string{"ls"}, false); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	for _, text := range []string{"", "{}", "{"} {
		write(t, filepath.Join(dir, configFile), text)
		if _, err := ExecProcess(dir, []string{"ls"}, false); err == nil {
			t.Errorf("%q was taken for a spec", text)
		}
	}
}

func TestCgroupPaths(t *testing.T) {
	cfg := steps.Config{CgroupDriver: "systemd", DefaultCgroupParent: "/sandflow"}
	spec, dir, err := CgroupPaths(cfg, nil, "x")
	if err != nil || spec != "sandflow.slice:sandflow:x" || dir != "/sandflow.slice/sandflow-x.scope" {
		t.Error(spec, dir, err)
	}
	if _, ok := PodCgroup(cfg, nil); ok {
		t.Error("a pod without a parent has no cgroup of its own")
	}
	pod := &runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{CgroupParent: "a-b.slice"}}
	if dir, ok := PodCgroup(cfg, pod); !ok || dir != "/a.slice/a-b.slice" {
		t.Error(dir, ok)
	}
}
