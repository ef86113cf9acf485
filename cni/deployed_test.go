// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

// deployed is a network of deploy/cni; only its leases are kept elsewhere.
func deployed(t *testing.T, file, leases string) *cni.Network {
	t.Helper()
	bin := cnitest.Plugins(t, "bridge", "ptp", "host-local", "portmap")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		CNIVersion string           `json:"cniVersion"`
		Name       string           `json:"name"`
		Plugins    []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	ipam, ok := list.Plugins[0]["ipam"].(map[string]any)
	if !ok {
		t.Fatalf("%s has no IPAM", file)
	}
	ipam["dataDir"] = leases
	text, err = json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(c *cni.Config) { c.BinDirs = []string{bin} })
	l.write("10-sandflow.conflist", string(text))
	return l.net()
}

// nft are the rules that are there; what is left when no pod is has none for a pod.
func nft(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	return string(out)
}

// TestDeployedNetworks attaches pods to the networks of deploy/cni with the real plugins:
// both families, host ports by nftables, and nothing left when the pods are gone.
func TestDeployedNetworks(t *testing.T) {
	files, err := filepath.Glob("../deploy/cni/*.conflist")
	if err != nil || len(files) == 0 {
		t.Fatalf("no networks: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			leases := t.TempDir()
			n := deployed(t, file, leases)
			if s := n.Status(t.Context()); !s.Ready {
				t.Fatalf("the network is not ready: %+v", s)
			}
			// What the first pod makes for good: the bridge, base chains.
			attachDeployed(t, n, "first")
			before := cnitest.World(t)
			attachDeployed(t, n, "second")
			if now := cnitest.World(t); !slices.Equal(before, now) {
				t.Errorf("left behind:\nbefore %q\nnow    %q", before, now)
			}
			for _, l := range cnitest.Tree(t, leases) {
				if net.ParseIP(filepath.Base(l)) != nil {
					t.Errorf("the lease %s is not freed", l)
				}
			}
		})
	}
}

func attachDeployed(t *testing.T, n *cni.Network, id string) {
	t.Helper()
	netns := cnitest.NetNS(t)
	res, err := n.Attach(t.Context(), cni.Attachment{ID: id, NetNS: netns, PodName: id, PodNamespace: "default", PortMappings: []cni.PortMapping{
		{HostPort: 18090, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 18090, ContainerPort: 80, Protocol: "udp"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.IPs) != 2 || net.ParseIP(res.IPs[0]).To4() == nil || net.ParseIP(res.IPs[1]).To4() != nil {
		t.Fatalf("addresses %v, want v4 and v6", res.IPs)
	}
	if rules := nft(t); !strings.Contains(rules, "18090 dnat to "+res.IPs[0]) || !strings.Contains(rules, "18090 dnat to ["+res.IPs[1]) ||
		!strings.Contains(rules, "saddr "+res.IPs[0]+" ") || !strings.Contains(rules, "saddr "+res.IPs[1]+" ") {
		t.Errorf("the rules of nftables lack host ports or masquerading: %s", rules)
	}
	serve(t, netns, id, 80)
	for _, network := range []string{"tcp", "udp"} {
		for _, address := range []string{net.JoinHostPort(res.IPs[0], "80"), net.JoinHostPort(res.IPs[1], "80"), "127.0.0.1:18090"} {
			if got, err := ask(network, address); err != nil || got != id {
				t.Errorf("%s %s answers %q, %v; want %q", network, address, got, err, id)
			}
		}
	}
	if err := n.Detach(t.Context(), cni.Attachment{ID: id, Saved: res.Saved}); err != nil {
		t.Fatal(err)
	}
	if rules := nft(t); strings.Contains(rules, id) || strings.Contains(rules, res.IPs[0]+" ") || strings.Contains(rules, res.IPs[1]+" ") {
		t.Errorf("rules of the pod are left: %s", rules)
	}
}
