// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase67PodFiles writes to the files that the runtime puts into containers.
func TestCase67PodFiles(t *testing.T) {
	n := newNode(t, options{})
	const script = `for f in /etc/resolv.conf /etc/hosts /etc/hostname; do stat -c '%a' $f; (echo '# x' >> $f) 2>/dev/null && echo $f written; done
echo x > /dev/shm/$HOSTNAME && echo shm; df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2`
	cfg := n.pod("files")
	cfg.DnsConfig = &cri.DNSConfig{Servers: []string{"10.0.0.10", "fd00::10"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:5"}}
	pod := n.run(cfg)
	for _, readonly := range []bool{true, false} {
		c := n.ctr("c", "sh", "-c", script)
		c.Linux.SecurityContext.ReadonlyRootfs = readonly
		out := n.output(pod, cfg, c)
		has(t, "modes and shared memory", out, "644\n", "shm\n64\n")
		misses(t, "modes", out, "755", "777")
		if got := strings.Count(out, "written"); got != 0 && readonly || got != 3 && !readonly {
			t.Errorf("read-only root %v: %d of 3 files can be written:\n%s", readonly, got, out)
		}
	}
	has(t, "resolv.conf", n.output(pod, cfg, n.ctr("c", "cat", "/etc/resolv.conf")), "nameserver 10.0.0.10\n", "nameserver fd00::10\n", "search a.example b.example\n", "options ndots:5\n")
	if got := n.output(pod, cfg, n.ctr("c", "ls", "/dev/shm")); got != "files\n" {
		t.Errorf("/dev/shm of another container of the pod has %q", got)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	must(t, os.WriteFile(hosts, []byte("10.9.8.7 of-kubelet\n"), 0o644))
	c := n.ctr("c", "cat", "/etc/hosts")
	c.Mounts = []*cri.Mount{{HostPath: hosts, ContainerPath: "/etc/hosts"}}
	if got := n.output(pod, cfg, c); got != "10.9.8.7 of-kubelet\n" {
		t.Errorf("kubelet's hosts file did not win: %q", got)
	}
	n.remove(pod)

	cfg = hostNetwork(n.pod("of-the-node"))
	cfg.DnsConfig = nil
	cfg.Linux.SecurityContext.NamespaceOptions.Ipc = cri.NamespaceMode_NODE
	marker := "/dev/shm/sandflow-case-67"
	must(t, os.WriteFile(marker, nil, 0o644))
	defer func() { must(t, os.Remove(marker)) }()
	pod = n.run(cfg)
	c = n.ctr("c", "sh", "-c", "cat /etc/resolv.conf; ls "+marker)
	o := c.Linux.SecurityContext.NamespaceOptions
	o.Network, o.Ipc = cri.NamespaceMode_NODE, cri.NamespaceMode_NODE
	has(t, "the node's files", n.output(pod, cfg, c), read(t, "/etc/resolv.conf"), marker)
	n.remove(pod)
	n.same()
}

// TestCase68HostNames runs pods with names around the kernel's limit.
func TestCase68HostNames(t *testing.T) {
	n := newNode(t, options{})
	script := func() *cri.ContainerConfig {
		return n.ctr("c", "sh", "-c", "hostname; echo $HOSTNAME; cat /etc/hostname")
	}
	for length, ok := range map[int]bool{0: true, 63: true, 64: true, 65: false, 200: false} {
		cfg := n.pod("named")
		cfg.Hostname = strings.Repeat("h", length)
		calls := len(n.cniCalls())
		id, err := n.tryRun(t.Context(), cfg, "")
		if !ok {
			refused(t, err, "64", codes.InvalidArgument)
			if len(n.cniCalls()) != calls {
				t.Errorf("%d bytes: a plugin was called first", length)
			}
			continue
		}
		must(t, err)
		got := strings.Fields(n.output(id, cfg, script()))
		if len(got) != 3 || got[0] != got[1] || got[0] != got[2] || length > 0 && got[0] != cfg.GetHostname() {
			t.Errorf("%d bytes: hostname, variable and file are %q", length, got)
		}
		n.remove(id)
	}
	node, err := os.Hostname()
	must(t, err)
	cfg := hostNetwork(n.pod("node"))
	cfg.Hostname = "other"
	id := n.run(cfg)
	c := script()
	c.Linux.SecurityContext.NamespaceOptions.Network = cri.NamespaceMode_NODE
	if got := strings.Fields(n.output(id, cfg, c)); len(got) != 3 || got[0] != node {
		t.Errorf("with the node's network the name is %q, want %q", got, node)
	}
	if now, err := os.Hostname(); err != nil || now != node {
		t.Errorf("the node is called %q now (%v)", now, err)
	}
	n.remove(id)
	n.same()
}
