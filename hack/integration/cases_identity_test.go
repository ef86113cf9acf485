// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	portsFile  = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	pingFile   = "/proc/sys/net/ipv4/ping_group_range"
	shmFile    = "/proc/sys/kernel/shm_rmid_forced"
	domainFile = "/proc/sys/kernel/domainname"
)

// firstID is the node's id of a user namespace's root.
const firstID, manyIDs = 200000, 65536

// userNamespace gives a pod, or a container, 64k ids of its own.
func userNamespace(o *cri.NamespaceOption) {
	ids := []*cri.IDMapping{{ContainerId: 0, HostId: firstID, Length: manyIDs}}
	o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func (n *node) ctrInUserNamespace(image, name string, command ...string) *cri.ContainerConfig {
	c := n.ctrOf(image, name, command...)
	userNamespace(c.Linux.SecurityContext.NamespaceOptions)
	return c
}

// nodeSettings are settings of the node that no pod may change.
func nodeSettings(t *testing.T) string {
	t.Helper()
	var all []string
	for _, path := range []string{portsFile, pingFile, shmFile, domainFile, "/proc/sys/kernel/hostname", "/proc/sys/kernel/panic"} {
		all = append(all, path+"="+read(t, path))
	}
	return strings.Join(all, "\n")
}

// TestCase58DefaultSysctls reads the settings in pods of all kinds, with and without values of
// their own; the node keeps its own.
func TestCase58DefaultSysctls(t *testing.T) {
	n := newNode(t, options{})
	before := nodeSettings(t)
	own := map[string]string{"net.ipv4.ip_unprivileged_port_start": "81", "net.ipv4.ping_group_range": "3 4"}
	for name, k := range map[string]struct {
		sysctls            map[string]string
		hostNet, ownUsers  bool
		ports, ping, again string
	}{
		"pod":             {ports: "0", ping: "0\t2147483647"},
		"pod, own values": {sysctls: own, ports: "81", ping: "3\t4"},
		// All groups of the node, as a user namespace shows what it does not have.
		"user ns":             {ownUsers: true, ports: "0", ping: "65534\t65534"},
		"user ns, own values": {sysctls: own, ownUsers: true, ports: "81", ping: "3\t4"},
		"host network":        {hostNet: true, ports: read(t, portsFile), ping: read(t, pingFile)},
	} {
		cfg := n.pod("sysctl")
		cfg.Linux.Sysctls = k.sysctls
		c := n.ctr("c", "cat", portsFile, pingFile)
		o := c.Linux.SecurityContext.NamespaceOptions
		if k.hostNet {
			hostNetwork(cfg)
			o.Network = cri.NamespaceMode_NODE
		}
		if k.ownUsers {
			userNamespace(cfg.Linux.SecurityContext.NamespaceOptions)
			userNamespace(o)
		}
		pod := n.run(cfg)
		ports, ping, _ := strings.Cut(strings.TrimSpace(n.output(pod, cfg, c)), "\n")
		if ports != k.ports || ping != k.ping {
			t.Errorf("%s: ports %q, groups %q; want %q, %q", name, ports, ping, k.ports, k.ping)
		}
		n.remove(pod)
		if now := nodeSettings(t); now != before {
			t.Errorf("%s: the node was\n%s\nand is\n%s", name, before, now)
		}
	}
	n.same()
}

// TestCase59VolumesInUserNamespace starts images with volumes in a pod with ids of its own.
func TestCase59VolumesInUserNamespace(t *testing.T) {
	n := newNode(t, options{})
	secrets := t.TempDir()
	must(t, os.WriteFile(filepath.Join(secrets, "token"), []byte("secret\n"), 0o644))
	must(t, os.Chmod(filepath.Dir(secrets), 0o711))
	volumes := func(paths ...string) func(*v1.Config) {
		return func(c *v1.Config) {
			c.Volumes = map[string]struct{}{}
			for _, p := range paths {
				c.Volumes[p] = struct{}{}
			}
		}
	}
	run := n.image("userns/run:1", volumes("/run"), layer(t, file{Name: "run/", UID: 7, GID: 8}, file{Name: "run/pid", Body: "1\n", UID: 9}))
	empty := n.image("userns/empty:1", volumes("/data"), layer(t, file{Name: "data/", UID: 1000, GID: 1000, Mode: 0o750}))
	beyond := n.image("userns/beyond:1", nil, layer(t, file{Name: "far", Body: "far\n", UID: 70000, Mode: 0o644}))
	content := n.image("userns/content:1", nil, layer(t, file{Name: "content/"}, file{Name: "content/f", Body: "content\n", UID: 5, Mode: 0o644}))
	n.before = n.count()

	cfg := n.pod("userns")
	userNamespace(cfg.Linux.SecurityContext.NamespaceOptions)
	pod := n.run(cfg)
	c := n.ctrInUserNamespace(run, "run", "sh", "-c", "stat -c '%u:%g' /run; stat -c '%u' /run/pid; cat /run/secrets/token; cat /proc/self/uid_map")
	c.Mounts = []*cri.Mount{{HostPath: secrets, ContainerPath: "/run/secrets", Readonly: true}}
	has(t, "content below a volume", n.output(pod, cfg, c), "7:8\n9\nsecret\n", "200000")

	c = n.ctrInUserNamespace(empty, "empty", "sh", "-c", "stat -c '%u:%g %a' /data && echo mine > /data/f && stat -c '%u' /data/f")
	c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1000}
	has(t, "an empty volume", n.output(pod, cfg, c), "1000:1000 750\n1000\n")

	// The root file system is id-mapped and not copied, so an id beyond the range harms nobody:
	// it is that of nobody.
	has(t, "an id beyond the range", n.output(pod, cfg, n.ctrInUserNamespace(beyond, "beyond", "sh", "-c", "cat /far; stat -c '%u' /far")), "far\n65534\n")
	c = n.ctrInUserNamespace(empty, "user", "true")
	c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 70000}
	n.notCreated(pod, cfg, c, "70000")
	n.notCreated(pod, cfg, c, "0-65535")

	c = n.ctrInUserNamespace(empty, "image-volume", "sh", "-c", "cat /img/content/f; stat -c '%u' /img/content/f")
	c.Mounts = []*cri.Mount{{Image: &cri.ImageSpec{Image: content}, ContainerPath: "/img", Readonly: true}}
	has(t, "an image volume", n.output(pod, cfg, c), "content\n5\n")
	n.remove(pod)
	n.same()
}

// TestCase90Sysctls asks for settings that would reach the node; it never changes.
func TestCase90Sysctls(t *testing.T) {
	n := newNode(t, options{})
	before := nodeSettings(t)
	hostIPC := func(cfg *cri.PodSandboxConfig) {
		cfg.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE
	}
	for _, k := range []struct {
		name, value string
		change      func(*cri.PodSandboxConfig)
	}{
		{name: "kernel.shm_rmid_forced", value: "1+kernel.domainname=x"},
		{name: "kernel.shm_rmid_forced", value: "1=kernel.panic=1"},
		{name: "kernel.shm_rmid_forced", value: "1\nkernel.domainname=x"},
		{name: "net.ipv4.../../kernel.panic", value: "1"},
		{name: "net/ipv4/../../kernel/panic", value: "1"},
		{name: "kernel.panic", value: "1"},
		{name: "net.ipv4.ip_unprivileged_port_start", value: "82", change: func(cfg *cri.PodSandboxConfig) { hostNetwork(cfg) }},
		{name: "kernel.domainname", value: "x", change: func(cfg *cri.PodSandboxConfig) { hostNetwork(cfg) }},
		{name: "kernel.shm_rmid_forced", value: "1", change: hostIPC},
		{name: "kernel.shmmax", value: "1", change: hostIPC},
	} {
		cfg := n.pod("sysctl")
		cfg.Linux.Sysctls = map[string]string{k.name: k.value}
		if k.change != nil {
			k.change(cfg)
		}
		id, err := n.tryRun(t.Context(), cfg, "")
		if err == nil {
			n.remove(id)
		}
		refused(t, err, "sysctl")
		if now := nodeSettings(t); now != before {
			t.Fatalf("%s=%q: the node was\n%s\nand is\n%s", k.name, k.value, before, now)
		}
	}
	cfg := n.pod("own")
	cfg.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "kernel.domainname": "mine.example"}
	pod := n.run(cfg)
	has(t, "the pod's own settings", n.output(pod, cfg, n.ctr("c", "cat", shmFile, domainFile)), "1\nmine.example\n")
	if now := nodeSettings(t); now != before {
		t.Errorf("the node was\n%s\nand is\n%s", before, now)
	}
	n.remove(pod)
	n.same()
}
