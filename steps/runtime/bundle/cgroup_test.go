// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// What is removed is what was asked for, under both cgroup drivers.
func TestExpandSystemd(t *testing.T) {
	for _, parent := range []string{"kubepods-burstable-podx.slice", "sandflow.slice", "/kubepods.slice/kubepods-podx.slice"} {
		path, err := cgroups.Path(cgroups.Systemd, parent, "id")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := expandSystemd(path), cgroups.Dir(path); got != want {
			t.Errorf("%s is removed at %s, and lies at %s", path, got, want)
		}
	}
	if got := expandSystemd("/a/b"); got != "/a/b" {
		t.Errorf("a plain path becomes %s", got)
	}
}

// A whole tree goes, and one that is not there is gone.
func TestRemoveTree(t *testing.T) {
	scope := filepath.Join(t.TempDir(), "kubepods.slice", "kubepods-podx.slice", "sandflow-id.scope")
	if err := os.MkdirAll(filepath.Join(scope, "system.slice", "inner.service"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := removeTree(scope); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(scope); !os.IsNotExist(err) {
		t.Errorf("the scope is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(scope)); err != nil {
		t.Errorf("the slice, which is kubelet's, is gone: %v", err)
	}
}

// Kills are added up over a tree on version 1, and read off once on version 2.
func TestOOMKillsOfFixtures(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(v1, "memory.oom_control"):          "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		filepath.Join(v1, "inner", "memory.oom_control"): "oom_kill_disable 0\noom_kill 2\n",
		filepath.Join(v2, "memory.events"):               "low 0\noom 4\noom_kill 4\noom_group_kill 0\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]int{v1: 3, v2: 4, "": 0} {
		if got, err := OOMKills(dir); err != nil || got != want {
			t.Errorf("%s: %d kills, %v, want %d", dir, got, err, want)
		}
	}
}
