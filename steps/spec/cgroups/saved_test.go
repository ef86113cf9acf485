// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// put writes limits of a cgroup that is really a directory.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What is no limit is left alone; what was empty becomes empty again.
func TestSavedOfV2(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "pods", "c1")
	before := map[string]string{"memory.max": "max\n", "cpuset.cpus": "\n", "io.max": "8:0 rbps=1\n8:16 rbps=2\n", "hugetlb.2MB.max": "max\n"}
	put(t, dir, before)
	put(t, dir, map[string]string{"memory.current": "4096\n"})
	host := Host{Unified: true, Root: root}
	saved, err := host.Save("/pods/c1", "io.max")
	if err != nil || len(saved) != len(before) {
		t.Fatalf("saved %v, %v", saved, err)
	}
	for name := range before {
		put(t, dir, map[string]string{name: "1\n"})
	}
	put(t, dir, map[string]string{"memory.current": "8192\n"})
	if err := saved.Restore(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.max": "max\n", "cpuset.cpus": "\n", "hugetlb.2MB.max": "max\n", "memory.current": "8192\n"} {
		if got := read(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := saved.Restore(); err != nil {
		t.Errorf("a cgroup that is gone: %v", err)
	}
	if left, err := host.Save("/pods/c1"); err != nil || len(left) != 0 {
		t.Errorf("a cgroup that is not there: %v, %v", left, err)
	}
}

func TestSetHugePages(t *testing.T) {
	root := t.TempDir()
	v1 := Host{Mounts: map[string]string{"hugetlb": filepath.Join(root, "hugetlb")}}
	put(t, root, map[string]string{
		"hugetlb/c1/hugetlb.2MB.limit_in_bytes": "0\n", "hugetlb/c1/hugetlb.2MB.rsvd.limit_in_bytes": "0\n", "v2/c1/hugetlb.1GB.max": "max\n",
	})
	v2 := Host{Unified: true, Root: filepath.Join(root, "v2")}
	if err := v1.SetHugePages("/c1", "2MB", 4<<20); err != nil {
		t.Error(err)
	}
	if err := v2.SetHugePages("/c1", "1GB", 1<<30); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"hugetlb/c1/hugetlb.2MB.limit_in_bytes": "4194304\n", "hugetlb/c1/hugetlb.2MB.rsvd.limit_in_bytes": "4194304\n", "v2/c1/hugetlb.1GB.max": "1073741824\n",
	} {
		if got := read(t, filepath.Join(root, name)); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if err := v1.SetHugePages("/c1", "1GB", 0); err == nil {
		t.Error("a size that is not there can be limited")
	}
}

// On a real v1 hierarchy limits go back in an order that the kernel takes: up and down,
// with and without swap, and where nothing was set before.
func TestSavedOfRealV1(t *testing.T) {
	host := Detect()
	memory, ok := host.Mounts["memory"]
	if !ok || host.Unified {
		t.Skip("this node has no v1 memory controller")
	}
	path := fmt.Sprintf("/sandflow-saved-%d", os.Getpid())
	dir := filepath.Join(memory, path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	const limit, both = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	if _, err := os.Stat(filepath.Join(dir, both)); err != nil {
		t.Skip("this node does not account for swap")
	}
	set := func(values ...string) {
		t.Helper()
		for i := 0; i < len(values); i += 2 {
			if err := write(filepath.Join(dir, values[i]), values[i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for what, change := range map[string]struct{ before, after []string }{
		"from none":   {nil, []string{limit, "16777216", both, "16777216"}},
		"up again":    {[]string{limit, "33554432", both, "33554432"}, []string{limit, "8388608", both, "8388608"}},
		"down again":  {[]string{limit, "8388608", both, "8388608"}, []string{both, "67108864", limit, "67108864"}},
		"swap's only": {[]string{limit, "8388608", both, "16777216"}, []string{both, "8388608"}},
	} {
		t.Run(what, func(t *testing.T) {
			set(both, "-1", limit, "-1")
			set(change.before...)
			saved, err := host.Save(path)
			if err != nil || len(saved) < 2 {
				t.Fatalf("saved %v, %v", saved, err)
			}
			set(change.after...)
			if err := saved.Restore(); err != nil {
				t.Fatal(err)
			}
			for file, want := range saved {
				if got := read(t, file); got != want {
					t.Errorf("%s is %s, want %s", file, strings.TrimSpace(got), strings.TrimSpace(want))
				}
			}
		})
	}
}
