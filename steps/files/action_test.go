// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cni/cnitest"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/files"
)

func TestMain(m *testing.M) { cnitest.Main(m) }

func request(change func(*runtime.PodSandboxConfig, *runtime.NamespaceOption)) *runtime.PodSandboxConfig {
	o := &runtime.NamespaceOption{}
	c := &runtime.PodSandboxConfig{Hostname: "web-0", Linux: &runtime.LinuxPodSandboxConfig{
		SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: o},
	}}
	if change != nil {
		change(c, o)
	}
	return c
}

func given(cfg *runtime.PodSandboxConfig) engine.Value {
	return steps.PodRequest.With(steps.Pod{Config: steps.Proto[*runtime.PodSandboxConfig]{M: cfg}})
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestSuite is CASES 67 as well: what the files say, and their modes.
func TestSuite(t *testing.T) {
	cnitest.NeedRoot(t)
	nodeName, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	nodeResolv := read(t, "/etc/resolv.conf")
	for name, c := range map[string]struct {
		cfg              *runtime.PodSandboxConfig
		hostname, resolv string
		shm              bool
		owner            uint32
	}{
		"plain": {request(nil), "web-0\n", nodeResolv, true, 0},
		"dns": {request(func(c *runtime.PodSandboxConfig, _ *runtime.NamespaceOption) {
			c.DnsConfig = &runtime.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}}
		}), "web-0\n", "search a.b\nnameserver 10.0.0.1\noptions ndots:5\n", true, 0},
		"empty dns": {request(func(c *runtime.PodSandboxConfig, _ *runtime.NamespaceOption) {
			c.DnsConfig = &runtime.DNSConfig{}
		}), "web-0\n", nodeResolv, true, 0},
		"host network": {request(func(_ *runtime.PodSandboxConfig, o *runtime.NamespaceOption) {
			o.Network = runtime.NamespaceMode_NODE
		}), nodeName + "\n", nodeResolv, true, 0},
		"host IPC": {request(func(_ *runtime.PodSandboxConfig, o *runtime.NamespaceOption) {
			o.Ipc = runtime.NamespaceMode_NODE
		}), "web-0\n", nodeResolv, false, 0},
		"user namespace": {request(func(_ *runtime.PodSandboxConfig, o *runtime.NamespaceOption) {
			m := []*runtime.IDMapping{{HostId: 200000, Length: 65536}}
			o.UsernsOptions = &runtime.UserNamespace{Mode: runtime.NamespaceMode_POD, Uids: m, Gids: m}
		}), "web-0\n", nodeResolv, true, 200000},
	} {
		t.Run(name, func(t *testing.T) {
			defer unix.Umask(unix.Umask(0o077)) // must not matter
			cfg := steps.Config{State: t.TempDir()}
			if err := os.MkdirAll(filepath.Dir(cfg.PodDir("x")), 0o711); err != nil {
				t.Fatal(err)
			}
			enginetest.Suite(t, enginetest.Subject{
				New:      func(*testing.T) engine.Action { return files.New(cfg) },
				Workflow: steps.Sandbox, Flow: steps.Create,
				Values: func(*testing.T, string) []engine.Value { return []engine.Value{given(c.cfg)} },
				World: func(t *testing.T, _ string) []string {
					t.Helper()
					return cnitest.Tree(t, cfg.State)
				},
				Check: func(t *testing.T, r *engine.Run) {
					t.Helper()
					f, err := steps.PodFiles.Need(r)
					if err != nil {
						t.Fatal(err)
					}
					for path, want := range map[string]string{f.Hostname: c.hostname, f.ResolvConf: c.resolv, f.Hosts: read(t, "/etc/hosts")} {
						if got := read(t, path); got != want {
							t.Errorf("%s says %q, want %q", path, got, want)
						}
						mode(t, path, 0o644, 0)
					}
					if (f.Shm != "") != c.shm {
						t.Errorf("shared memory at %q", f.Shm)
					}
					if c.shm {
						checkShm(t, f.Shm, c.owner)
					}
				},
			})
		})
	}
}

func mode(t *testing.T, path string, want os.FileMode, owner uint32) {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || fi.Mode()&^os.ModeDir != want || st.Uid != owner || st.Gid != owner {
		t.Errorf("%s has mode %v and owner %d:%d, want %v and %d", path, fi.Mode(), st.Uid, st.Gid, want, owner)
	}
}

func checkShm(t *testing.T, path string, owner uint32) {
	t.Helper()
	mode(t, path, os.ModeSticky|0o777, owner)
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	if size := int64(st.Blocks) * st.Bsize; st.Type != unix.TMPFS_MAGIC || size != 64<<20 {
		t.Errorf("shared memory is %#x of %d bytes", st.Type, size)
	}
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); st.Flags&want != want {
		t.Errorf("shared memory has flags %#x", st.Flags)
	}
}

// TestSweepTakesMounts: whatever a lost pod has mounted, only its own tree goes.
func TestSweepTakesMounts(t *testing.T) {
	cnitest.NeedRoot(t)
	cfg := steps.Config{State: t.TempDir()}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(cfg.PodDir("lost"), "a", "b")
	for _, d := range []string{deep, cfg.PodDir("kept")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range []string{filepath.Dir(deep), deep} {
		if err := os.MkdirAll(target, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(outside, target, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(outside, "b"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shim := filepath.Join(cfg.PodDir("lost"), "shim")
	if err := os.Mkdir(shim, 0o700); err != nil {
		t.Fatal(err)
	}
	s := engine.NewSweep(false, func(_, id string) bool { return id == "kept" })
	if err := files.New(cfg).Sweep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if f := s.Found(); len(f) != 1 || !strings.Contains(f[0].Error, "shim") {
		t.Fatalf("with a shim: found %+v", f)
	}
	if err := os.Remove(shim); err != nil {
		t.Fatal(err)
	}
	s = engine.NewSweep(false, func(_, id string) bool { return id == "kept" })
	if err := files.New(cfg).Sweep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if f := s.Found(); len(f) != 1 || f[0].Error != "" || !strings.HasSuffix(f[0].Name, "/lost") {
		t.Fatalf("found %+v", f)
	}
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Error(err)
	}
	if got := cnitest.Tree(t, filepath.Dir(cfg.PodDir("x"))); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
}
