// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// The tests here show, with the whole daemon, what SECURITY.md says of published
// vulnerabilities. The number of one is in the name of its test; related ones are in its
// comment.

// TestCVE_2024_21626 has working directories that lead to descriptors of the runtime's, in
// the image, in the request and by a link: no container comes to be outside of its root.
func TestCVE_2024_21626(t *testing.T) {
	n := newNode(t, options{})
	host := t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "escaped"), nil, 0o600))
	up := strings.Repeat("../", 12)
	script := "pwd; for i in . .. ../.. ../../.. ../../../.. ../../../../..; do [ -e $i" + host + "/escaped ] && echo ESCAPED; done; [ -e " + up + host + "/escaped ] && echo ESCAPED; true"
	const first, last = 3, 11
	refs := map[string]string{"request": ""}
	for fd := first; fd < last; fd++ {
		dir := fmt.Sprintf("/proc/self/fd/%d", fd)
		refs[dir] = n.image(fmt.Sprintf("fds:%d", fd), func(c *v1.Config) { c.WorkingDir = dir })
		refs["link"+dir] = n.image(fmt.Sprintf("links-to-fds:%d", fd), func(c *v1.Config) { c.WorkingDir = "/work" }, layer(t, file{Name: "work", Link: dir}))
	}
	n.before = n.count()
	cfg := n.pod("fds")
	pod := n.run(cfg)
	try := func(what string, c *cri.ContainerConfig) {
		id, err := n.tryCreate(t.Context(), pod, cfg, c)
		if err != nil {
			return // refused
		}
		if err := n.tryStart(t.Context(), id); err == nil {
			n.exited(id)
			misses(t, what, rebuild(n.log(cfg, "c"), "stdout"), "ESCAPED")
			must(t, os.Remove(filepath.Join(cfg.GetLogDirectory(), c.GetLogPath())))
		}
		n.removeContainer(id)
	}
	for what, ref := range refs {
		if ref != "" {
			try(what, n.ctrOf(ref, "c", "sh", "-c", script))
			continue
		}
		for fd := first; fd < last; fd++ {
			c := n.ctr("c", "sh", "-c", script)
			c.WorkingDir = fmt.Sprintf("/proc/self/fd/%d", fd)
			try(c.WorkingDir, c)
		}
	}
	n.remove(pod)
	n.same()
}

// swap exchanges two names in a directory for as long as f runs, as fast as it can.
func swap(t *testing.T, dir, a, b string, f func()) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, a), unix.AT_FDCWD, filepath.Join(dir, b), unix.RENAME_EXCHANGE)
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	f()
}

// races is how often a race is tried to be won.
const races = 8

// TestCVE_2025_31133 has a neighbour exchange what the runtime mounts over masked paths and
// the console (/dev/null, /dev/console, /dev/pts in a shared volume) for links into /proc while containers
// start. So it is for CVE-2025-52565, CVE-2025-52881 and CVE-2019-19921: what is masked stays masked.
func TestCVE_2025_31133(t *testing.T) {
	n := newNode(t, options{})
	shared := t.TempDir()
	must(t, unix.Mknod(filepath.Join(shared, "null"), unix.S_IFCHR|0o666, 1<<8|3))
	must(t, os.Chmod(filepath.Join(shared, "null"), 0o666))
	must(t, os.Symlink("/proc/sys/kernel/ostype", filepath.Join(shared, "evil")))
	must(t, os.WriteFile(filepath.Join(shared, "console"), nil, 0o600))
	ostype, version := read(t, "/proc/sys/kernel/ostype"), read(t, "/proc/version")
	cfg := n.pod("masks")
	pod := n.run(cfg)
	for _, name := range []string{"null", "console"} {
		swap(t, shared, name, "evil", func() {
			for i := range races {
				c := n.ctr("c", "sh", "-c", "cat /proc/version; cat /proc/sys/kernel/ostype; (echo owned > /proc/version) 2>/dev/null; (echo owned > /dev/console) 2>/dev/null; sleep 0.1")
				c.Tty = i%2 == 0
				c.Mounts = []*cri.Mount{{HostPath: shared, ContainerPath: "/dev"}}
				c.Linux.SecurityContext.MaskedPaths = []string{"/proc/version"}
				c.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/sys"}
				id, err := n.tryCreate(t.Context(), pod, cfg, c)
				must(t, err)
				if n.tryStart(t.Context(), id) == nil {
					n.exited(id)
					misses(t, "what is masked", rebuild(n.log(cfg, "c"), "stdout"), version)
				}
				n.removeContainer(id)
			}
		})
	}
	if now := read(t, "/proc/sys/kernel/ostype"); now != ostype {
		t.Errorf("the node's setting is %q", now)
	}
	n.remove(pod)
	n.same()
}

// TestCVE_2021_30465 has a neighbour exchange a directory of a shared volume for a link to
// the root while containers start that mount something below it. So it is for CVE-2024-45310:
// nothing is mounted or made outside of the container.
func TestCVE_2021_30465(t *testing.T) {
	n := newNode(t, options{})
	shared, host := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(host, "file"), []byte("mine"), 0o600))
	must(t, os.Mkdir(filepath.Join(shared, "d"), 0o755))
	must(t, os.Symlink(host, filepath.Join(shared, "l")))
	before := tree(t, host)
	cfg := n.pod("mounts")
	pod := n.run(cfg)
	swap(t, shared, "d", "l", func() {
		for range races {
			c := n.ctr("c", "sh", "-c", "[ -e "+host+"/file ] && echo ESCAPED; true")
			c.Mounts = []*cri.Mount{
				{HostPath: shared, ContainerPath: "/vol"}, {HostPath: "/usr", ContainerPath: "/vol/d/new", Readonly: true},
				{HostPath: "/etc/hostname", ContainerPath: "/vol/d/new-file", Readonly: true},
			}
			id, err := n.tryCreate(t.Context(), pod, cfg, c)
			must(t, err)
			if n.tryStart(t.Context(), id) == nil {
				n.exited(id)
				misses(t, "what the container sees", rebuild(n.log(cfg, "c"), "stdout"), "ESCAPED")
			}
			n.removeContainer(id)
			if now := tree(t, host); now != before {
				t.Fatalf("what the link leads to was\n%s\nand is\n%s", before, now)
			}
		}
	})
	n.remove(pod)
	n.same()
}

// spec reads the OCI spec of a container.
func (n *node) spec(id string) *specs.Spec {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.daemon.State, "containers", id, "config.json"))
	must(n.t, err)
	s := &specs.Spec{}
	must(n.t, json.Unmarshal(raw, s))
	return s
}

// TestCVE_2024_3154 gives a pod and its container annotations that OCI runtimes and other
// CRI implementations act on: only what the handler lets through is in the spec. So it is
// for CVE-2023-6476 and the like, where annotations changed cgroups and mounts.
func TestCVE_2024_3154(t *testing.T) {
	l := lab(t)
	n := newNode(t, options{Options: harness.Options{Extra: "[runtime.handlers.lets]\nbinary = \"" + l.Bin("runc") + "\"\nannotations = [\"allowed.example/*\"]\n"}})
	hostile := map[string]string{
		"org.systemd.property.ExecStopPost":     "['/bin/sh', '-c', 'id']",
		"org.systemd.property.TimeoutStopUSec'": "uint64 1",
		"run.oci.hooks.stdout":                  "/tmp/out", "run.oci.systemd.subgroup": "", "run.oci.handler": "krun",
		"cpu-load-balancing.crio.io": "disable", "cpu-quota.crio.io": "disable", "irq-load-balancing.crio.io": "disable",
		"io.kubernetes.cri-o.LinkLogs": "../../../..", "io.kubernetes.cri-o.ShmSize": "1Gi", "io.kubernetes.cri-o.userns-mode": "auto",
		"io.kubernetes.cri.sandbox-id": "other", "io.kubernetes.cri.container-type": "sandbox",
		"cdi.k8s.io/x": "vendor.com/class=nope", "devices.gpu/x": "y",
		"io.containerd.runc.v2.group": "other", "nri.example/x": "y",
	}
	for _, handler := range []string{"", "lets"} {
		cfg := n.pod("annotated")
		cfg.Annotations = map[string]string{"allowed.example/pod": "p"}
		c := n.ctr("c", "sleep", "1000")
		c.Annotations = map[string]string{"allowed.example/ctr": "c"}
		for key, value := range hostile {
			cfg.Annotations[key] = value
			if !strings.HasPrefix(key, "cdi.") { // asks for a device there: refused by name otherwise
				c.Annotations[key] = value
			}
		}
		pod, err := n.tryRun(t.Context(), cfg, handler)
		must(t, err)
		id := n.started(pod, cfg, c)
		s := n.spec(id)
		for key, value := range s.Annotations {
			standard := strings.HasPrefix(key, "io.kubernetes.cri.") && value != hostile[key]
			if !standard && (handler == "" || !strings.HasPrefix(key, "allowed.example/")) {
				t.Errorf("handler %q: the OCI runtime is told %s=%s", handler, key, value)
			}
		}
		if handler != "" && (s.Annotations["allowed.example/pod"] != "p" || s.Annotations["allowed.example/ctr"] != "c") {
			t.Errorf("what the handler lets through did not come: %v", s.Annotations)
		}
		n.remove(pod)
	}
	n.same()
}

// TestCVE_2026_15809 gives HOME and other variables line breaks, to a user that the image
// does not know. So it is for CVE-2022-4318: the variable arrives as it is, and no line is
// added to the image's files of users.
func TestCVE_2026_15809(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("home")
	pod := n.run(cfg)
	const evil = "/root:/bin/sh\nevil::0:0::/:/bin/sh\r\n"
	var files []string
	for _, value := range []string{"/home", evil} {
		c := n.ctr("c", "sh", "-c", "md5sum /etc/passwd /etc/group; printf %s \"$HOME\" | md5sum")
		c.Envs = []*cri.KeyValue{{Key: "HOME", Value: []byte(value)}, {Key: "OTHER", Value: []byte(evil)}}
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 4321}
		id := n.started(pod, cfg, c)
		n.exited(id)
		out := rebuild(n.log(cfg, "c"), "stdout")
		files = append(files, strings.Join(strings.Fields(out)[:4], " "))
		if env := n.spec(id).Process.Env; !slices.Contains(env, "HOME="+value) || !slices.Contains(env, "OTHER="+evil) {
			t.Errorf("variables: %q", env)
		}
		n.removeContainer(id)
		must(t, os.Remove(filepath.Join(cfg.GetLogDirectory(), "c.log")))
	}
	if files[0] != files[1] {
		t.Errorf("files of users:\n%s\n%s", files[0], files[1])
	}
	n.remove(pod)
	n.same()
}

// TestCVE_2022_2995 looks at the groups of a container's first process and of an exec: the
// primary group is among them, so that nobody gets around permissions denied to a group. So
// it is for CVE-2023-25173.
func TestCVE_2022_2995(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("groups")
	pod := n.run(cfg)
	c := n.ctr("c", "sleep", "1000")
	c.Linux.SecurityContext.RunAsUser, c.Linux.SecurityContext.RunAsGroup = &cri.Int64Value{Value: 4321}, &cri.Int64Value{Value: 2000}
	c.Linux.SecurityContext.SupplementalGroups = []int64{3000}
	id := n.started(pod, cfg, c)
	for who, path := range map[string]string{"init": "/proc/1/status", "exec": "/proc/self/status"} {
		has(t, who, n.exec(id, "cat", path), "Groups:\t2000 3000 \n")
	}
	n.remove(pod)
	n.same()
}

// TestCVE_2021_21334 starts many containers of one image at once, each with variables of
// its own: none has another's.
func TestCVE_2021_21334(t *testing.T) {
	n := newNode(t, options{})
	image := n.image("env:1", func(c *v1.Config) { c.Env = append(c.Env, "OF_IMAGE=1") })
	n.before = n.count()
	cfg := n.pod("env")
	pod := n.run(cfg)
	const many = 12
	ids := make([]string, many)
	var wg sync.WaitGroup
	for i := range many {
		c := n.ctrOf(image, fmt.Sprint("c", i), "sleep", "1000")
		c.Envs = []*cri.KeyValue{{Key: fmt.Sprint("MINE_", i), Value: []byte("x")}, {Key: "SECRET", Value: fmt.Append(nil, i)}}
		wg.Go(func() {
			id, err := n.tryCreate(t.Context(), pod, cfg, c)
			if err == nil {
				err = n.tryStart(t.Context(), id)
			}
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for i, id := range ids {
		env := n.exec(id, "env")
		has(t, id, env, "OF_IMAGE=1\n", fmt.Sprintf("MINE_%d=x\n", i), fmt.Sprintf("SECRET=%d\n", i))
		if strings.Count(env, "MINE_") != 1 {
			t.Errorf("container %d has\n%s", i, env)
		}
	}
	n.remove(pod)
	n.same()
}

// TestCVE_2025_47291 looks where the containers of a pod with a user namespace are: in the
// pod's cgroup, as all others.
func TestCVE_2025_47291(t *testing.T) {
	n := newNode(t, options{})
	for _, userns := range []bool{false, true} {
		cfg, c := n.pod("limited"), n.ctr("c", "cat", "/proc/self/cgroup")
		cfg.Linux.CgroupParent = n.lab.CgroupParent + "/pod-of-47291"
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
		if userns {
			userNamespace(cfg.Linux.SecurityContext.NamespaceOptions)
			userNamespace(c.Linux.SecurityContext.NamespaceOptions)
		}
		pod := n.run(cfg)
		found := 0
		for line := range strings.Lines(n.output(pod, cfg, c)) {
			if f := strings.SplitN(line, ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
				found++
				has(t, fmt.Sprintf("user namespace %v", userns), f[2], cfg.Linux.CgroupParent+"/")
			}
		}
		if found != 1 {
			t.Errorf("user namespace %v: no memory cgroup is told", userns)
		}
		n.remove(pod)
	}
	parents, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", n.lab.CgroupParent, "pod-of-47291"))
	must(t, err)
	for _, parent := range parents {
		must(t, removeEmpty(parent)) // kubelet's to remove, so it stays
	}
	n.same()
}
