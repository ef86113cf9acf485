// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

// The tests here show what SECURITY.md says of published vulnerabilities of CNI.

// TestCVE_2021_20206 has configurations whose plugins are paths that lead out of the
// directories of plugins: nothing there is run.
func TestCVE_2021_20206(t *testing.T) {
	l := newLab(t)
	ran := filepath.Join(t.TempDir(), "ran")
	outside := filepath.Join(filepath.Dir(l.bin), "evil")
	if err := os.WriteFile(outside, []byte("#!/bin/sh\ntouch "+ran+"\necho '{\"cniVersion\":\"1.0.0\"}'\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for _, kind := range []string{"../evil", "./../evil", outside, "../" + filepath.Base(l.bin) + "/../evil"} {
		l.write("10-a.conflist", list("a", "1.0.0", kind))
		n := l.net()
		if _, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", NetNS: cnitest.NetNS(t), PodName: "p1"}); err == nil {
			t.Errorf("a plugin called %s is accepted", kind)
		}
		if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", PodName: "p1"}); err != nil {
			t.Logf("detach: %v", err)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("the plugin %s was run", kind)
		}
	}
}

// TestCVE_2025_67499 maps a host port with portmap's nftables backend: what is for the same
// port of another pod goes to that pod.
func TestCVE_2025_67499(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the program nft")
	}
	bin := cnitest.Plugins(t, "bridge", "host-local", "portmap")
	l := newLab(t, func(c *cni.Config) { c.BinDirs = []string{bin} })
	l.write("10-nft.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"nft","plugins":[
		{"type":"bridge","bridge":"cninft0","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.88.9.0/24"}]]}},
		{"type":"portmap","backend":"nftables","capabilities":{"portMappings":true}}]}`, t.TempDir()))
	n := l.net()
	var ips []string
	for _, id := range []string{"mapped", "other"} {
		at := cni.Attachment{ID: id, NetNS: cnitest.NetNS(t), PodName: id, PodNamespace: "default"}
		port := 18080
		if id == "mapped" {
			port = 80
			at.PortMappings = []cni.PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "tcp"}}
		}
		res, err := n.Attach(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Detach(context.WithoutCancel(t.Context()), cni.Attachment{ID: id, Saved: res.Saved}); err != nil {
				t.Error(err)
			}
		})
		serve(t, at.NetNS, id, port)
		ips = append(ips, res.IPs[0])
	}
	for address, want := range map[string]string{
		net.JoinHostPort("10.88.9.1", "18080"): "mapped", net.JoinHostPort(ips[1], "18080"): "other", net.JoinHostPort(ips[0], "80"): "mapped",
	} {
		if got, err := ask("tcp", address); err != nil || got != want {
			t.Errorf("%s is answered by %q, %v; want %q", address, got, err, want)
		}
	}
}

// TestCVE_2020_10749 looks at the links that the bridge makes on the node: none of them takes
// routes that a pod advertises.
func TestCVE_2020_10749(t *testing.T) {
	n, _ := realNetwork(t)
	res, err := n.Attach(t.Context(), cni.Attachment{ID: "ra", NetNS: cnitest.NetNS(t), PodName: "ra"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Detach(t.Context(), cni.Attachment{ID: "ra", Saved: res.Saved}); err != nil {
			t.Error(err)
		}
	}()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, link := range links {
		name := link.Attrs().Name
		if name != "cnireal0" && !strings.HasPrefix(name, "veth") {
			continue
		}
		seen++
		raw, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "accept_ra"))
		if err != nil || strings.TrimSpace(string(raw)) != "0" {
			t.Errorf("%s: accept_ra is %q, %v", name, raw, err)
		}
	}
	if seen < 2 {
		t.Errorf("%d links were looked at", seen)
	}
}
