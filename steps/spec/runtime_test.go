// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// sandbox is a place to run real containers in: namespaces, files, a cgroup
// parent, all of its own and gone at the end.
type sandbox struct {
	t       *testing.T
	binary  string
	dir     string
	parent  string
	pid     int
	count   int
	hideV2  bool
	version string
}

func newSandbox(t *testing.T, binary string) *sandbox {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("running containers needs root")
	}
	path, err := filepath.Abs(filepath.Join("../../build/bin", binary))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath(binary); err != nil {
			t.Skipf("%s is not installed", binary)
		}
	}
	s := &sandbox{t: t, binary: path, dir: t.TempDir(), parent: fmt.Sprintf("/sandflow-spec-%d", os.Getpid())}
	t.Cleanup(s.removeCgroups)
	s.namespaces()
	for _, f := range []string{"hosts", "hostname", "resolv.conf"} {
		write(t, filepath.Join(s.dir, "files", f), f+"\n")
	}
	shm := filepath.Join(s.dir, "shm")
	if err := os.Mkdir(shm, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("shm", shm, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, shm) })
	return s
}

func unmount(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Errorf("unmount %s: %v", dir, err)
	}
}

// namespaces are held by a process that lives as long as the test.
func (s *sandbox) namespaces() {
	c := exec.Command("cat")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	in, err := c.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Skipf("no namespaces here: %v", err)
	}
	s.pid = c.Process.Pid
	s.t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
}

func (s *sandbox) removeCgroups() {
	found, err := filepath.Glob(filepath.Join(cgroups.Root, "*", s.parent))
	if err != nil {
		s.t.Error(err)
	}
	for _, dir := range append(found, filepath.Join(cgroups.Root, s.parent)) {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			s.t.Errorf("remove cgroup: %v", err)
		}
	}
}

// run runs a shell script in a container and gives what it prints.
func (s *sandbox) run(script string, change func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig)) string {
	s.t.Helper()
	s.count++
	in := request(s.t, func(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		s.fill(in, c, p)
		c.Command, c.Args = []string{"/bin/sh", "-c", script}, nil
		if change != nil {
			change(in, c, p)
		}
	})
	b, err := newSpec(in, detect())
	if err != nil {
		s.t.Fatal(err)
	}
	bundle := filepath.Dir(in.Rootfs.Path)
	if err := writeSpec(bundle, b); err != nil {
		s.t.Fatal(err)
	}
	args := []string{"--root", filepath.Join(s.dir, "state"), "run", "--bundle", bundle, in.ID}
	cmd := exec.Command(s.binary, args...)
	if s.hideV2 {
		cmd = exec.Command("unshare", append([]string{"-m", "sh", "-c", `umount /sys/fs/cgroup/unified 2>/dev/null; exec "$0" "$@"`, s.binary}, args...)...)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%v: %s%s", err, &stdout, &stderr)
	}
	return stdout.String()
}

// fill makes the root file system: the node's /usr, read-only, with the usual links to it.
func (s *sandbox) fill(in *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
	in.ID = fmt.Sprintf("spec-%d-%d", os.Getpid(), s.count)
	root := filepath.Join(s.dir, in.ID, rootfsDir)
	if err := os.MkdirAll(filepath.Dir(root), 0o711); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(in.Rootfs.Path, root); err != nil {
		s.t.Fatal(err)
	}
	in.Rootfs.Path = root
	for _, l := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+l, filepath.Join(root, l)); err != nil {
			s.t.Fatal(err)
		}
	}
	ns := func(name string) string { return fmt.Sprintf("/proc/%d/ns/%s", s.pid, name) }
	in.Pod.Namespaces = steps.Namespaces{Net: ns("net"), IPC: ns("ipc"), UTS: ns("uts"), HostName: "pod-0"}
	files := filepath.Join(s.dir, "files")
	in.Pod.Files = steps.Files{
		Hosts: filepath.Join(files, "hosts"), Hostname: filepath.Join(files, "hostname"), ResolvConf: filepath.Join(files, "resolv.conf"), Shm: filepath.Join(s.dir, "shm"),
	}
	in.Ctr.Image.Config.Env = nil
	c.Mounts = []*runtime.Mount{{HostPath: "/usr", ContainerPath: "/usr", Readonly: true}}
	p.Linux.CgroupParent = s.parent
	in.Config.Runtimes["runc"] = steps.Runtime{Binary: s.binary, OCIVersion: s.version}
}

// has checks lines of the output.
func has(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+out, "\n"+l+"\n") {
			t.Errorf("the output lacks %q", l)
		}
	}
	if t.Failed() {
		t.Logf("it is\n%s", out)
	}
}

const reportScript = `
id -u; id -g; id -G; pwd; echo host $HOSTNAME
grep -E '^(CapInh|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status | tr '\t' ' '
echo oom $(cat /proc/self/oom_score_adj)
sed -n 's/^[0-9]*:memory:/cgroup /p' /proc/self/cgroup
echo version $(wc -c < /proc/version)
true > /proc/sys/kernel/shmmax || echo sysctl ro
echo x > /etc/hosts || echo hosts ro
echo x > /root-file || echo root ro
echo x > /dev/shm/f && echo shm rw
grep -q ' /sys sysfs ro,' /proc/mounts && echo sys ro
`

func TestUnprivilegedContainer(t *testing.T) {
	for _, binary := range []string{"runc", "crun"} {
		t.Run(binary, func(t *testing.T) {
			s := newSandbox(t, binary)
			s.hideV2 = binary == "crun"
			out := s.run(reportScript, func(in *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
				c.WorkingDir = "/made/for/it"
				sec := c.Linux.SecurityContext
				sec.RunAsUsername, sec.SupplementalGroups, sec.ReadonlyRootfs, sec.NoNewPrivs = "web", []int64{7}, true, true
				sec.Capabilities = &runtime.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"KILL"}}
				sec.Seccomp = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}
				sec.MaskedPaths, sec.ReadonlyPaths = []string{"/proc/version", "/odd/none"}, []string{"/proc/sys"}
				c.Linux.Resources = &runtime.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 64 << 20, OomScoreAdj: 900}
			})
			has(t, out, "33", "34", "34 7 50000 50001", "/made/for/it", "host pod-0", "CapInh: 0000000000000000", "CapBnd: 0000000000000020", "NoNewPrivs: 1",
				"Seccomp: 2", "oom 900", "version 0", "sysctl ro", "hosts ro", "root ro", "shm rw", "sys ro")
			if d := cgroups.Detect(); !d.Unified && d.Has("memory") {
				has(t, out, "cgroup "+s.parent+"/"+fmt.Sprintf("spec-%d-%d", os.Getpid(), s.count))
			}
		})
	}
}

func TestWritableRootAndAmbientCapabilities(t *testing.T) {
	s := newSandbox(t, "runc")
	out := s.run(reportScript, func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Linux.SecurityContext.Capabilities = &runtime.Capability{AddAmbientCapabilities: []string{"NET_RAW"}}
	})
	has(t, out, "0", "/", "CapInh: 0000000000002000", "CapAmb: 0000000000002000", "NoNewPrivs: 0", "Seccomp: 0", "oom 0", "shm rw")
	if strings.Contains(out, "hosts ro") || strings.Contains(out, "root ro") {
		t.Errorf("not writable:\n%s", out)
	}
}

// Case 54, with the real flags: in whatever order the containers start.
func TestSysOfPrivilegedAndUnprivileged(t *testing.T) {
	s := newSandbox(t, "runc")
	const script = `echo alias > /sys/class/net/lo/ifalias && echo sys writable; mkdir /sys/fs/cgroup/memory/sub-$$ && echo cgroup writable && rmdir /sys/fs/cgroup/memory/sub-$$
test -e /dev/null && ls /dev | wc -l`
	privilegedPod := func(privileged bool) func(*input, *runtime.ContainerConfig, *runtime.PodSandboxConfig) {
		return func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
			p.Linux.SecurityContext.Privileged, c.Linux.SecurityContext.Privileged = true, privileged
			c.Linux.SecurityContext.ReadonlyRootfs = true
		}
	}
	for _, privileged := range []bool{false, true, false, true} {
		out := s.run(script, privilegedPod(privileged))
		if strings.Contains(out, "sys writable") != privileged {
			t.Errorf("privileged %v:\n%s", privileged, out)
		}
		if h := cgroups.Detect(); !h.Unified && strings.Contains(out, "cgroup writable") != privileged {
			t.Errorf("privileged %v:\n%s", privileged, out)
		}
	}
}

// Case 63, with real mounts: read-only is recursive where asked for, and only there.
func TestReadOnlyMounts(t *testing.T) {
	s := newSandbox(t, "runc")
	tree := filepath.Join(s.dir, "tree")
	sub := filepath.Join(tree, "sub")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("sub", sub, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, sub) })
	for _, recursive := range []bool{false, true} {
		out := s.run("echo x > /m/f || echo top ro; echo x > /m/sub/f || echo sub ro", func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
			c.Mounts = append(c.Mounts, &runtime.Mount{HostPath: tree, ContainerPath: "/m", Readonly: true, RecursiveReadOnly: recursive})
		})
		if !strings.Contains(out, "top ro") || strings.Contains(out, "sub ro") != recursive {
			t.Errorf("recursive %v:\n%s", recursive, out)
		}
	}
}

// Case 66: devices under other names, and the node's /dev bound in.
func TestRealDevices(t *testing.T) {
	s := newSandbox(t, "runc")
	out := s.run("head -c2 /dev/mine | wc -c; true > /dev/mine || echo write refused", func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Devices = []*runtime.Device{{HostPath: "/dev/kmsg", ContainerPath: "/dev/other", Permissions: "r"}, {HostPath: "/dev/zero", ContainerPath: "/dev/mine", Permissions: "r"}}
	})
	has(t, out, "2")
	out = s.run("test -c /dev/null && echo yes", func(_ *input, c *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
		c.Mounts = append(c.Mounts, &runtime.Mount{HostPath: "/dev", ContainerPath: "/dev"})
	})
	has(t, out, "yes")
}

// Case 63, with real mounts: propagation as named, and refused where the source cannot give it.
func TestPropagation(t *testing.T) {
	s := newSandbox(t, "runc")
	source := filepath.Join(s.dir, "source")
	if err := os.MkdirAll(filepath.Join(source, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, source, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, source) })
	both := runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL
	mount := &runtime.Mount{HostPath: source, ContainerPath: "/m", Propagation: both}
	if err := unix.Mount("", source, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := checkShared(source, both); err == nil {
		t.Error("a private source was not refused")
	}
	if err := unix.Mount("", source, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	s.run("mount -t tmpfs inner /m/sub && echo x > /m/sub/file", func(_ *input, c *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		c.Mounts = append(c.Mounts, mount)
		c.Linux.SecurityContext.Privileged, p.Linux.SecurityContext.Privileged = true, true
	})
	if _, err := os.Stat(filepath.Join(source, "sub/file")); err != nil {
		t.Errorf("the mount made in the container is not here: %v", err)
	}
	unmount(t, filepath.Join(source, "sub"))
}
