// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

// TestMasqueradeAfterCutDel: a DEL that was cut short has removed the link, by which the
// bridge plugin finds the addresses, and not the rules. What comes after it removes them.
func TestMasqueradeAfterCutDel(t *testing.T) {
	n, leases := realNetwork(t)
	attach := func(id string) (cni.Result, string) {
		t.Helper()
		netns := cnitest.NetNS(t)
		res, err := n.Attach(t.Context(), cni.Attachment{ID: id, NetNS: netns, PodName: id})
		if err != nil {
			t.Fatal(err)
		}
		return res, netns
	}
	other, _ := attach("other")
	before := world(t, leases)
	cut := func(netns string) {
		t.Helper()
		err := inside(t, netns, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]func(res cni.Result, netns string) error{
		"by a daemon before this one": func(res cni.Result, netns string) error {
			cut(netns)
			if err := n.GC(t.Context(), []string{"pod", "other"}); err != nil {
				return err
			}
			return n.Detach(t.Context(), cni.Attachment{ID: "pod", Saved: res.Saved})
		},
		"by a try before this one": func(res cni.Result, netns string) error {
			cut(netns)
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			if err := n.Detach(gone, cni.Attachment{ID: "pod", Saved: res.Saved}); err == nil {
				t.Error("it is detached for somebody who has gone")
			}
			return n.Detach(t.Context(), cni.Attachment{ID: "pod", Saved: res.Saved})
		},
		"the namespace has gone": func(res cni.Result, netns string) error {
			if err := unix.Unmount(netns, unix.MNT_DETACH); err != nil {
				return err
			}
			return n.Detach(t.Context(), cni.Attachment{ID: "pod", Saved: res.Saved})
		},
		"nobody has noticed, and it is swept": func(res cni.Result, netns string) error {
			cut(netns)
			if err := n.Detach(t.Context(), cni.Attachment{ID: "pod", Saved: res.Saved}); err != nil {
				return err
			}
			return sweep(t, n)
		},
		"with a chain that nothing leads to": func(res cni.Result, netns string) error {
			cut(netns)
			if err := n.Detach(t.Context(), cni.Attachment{ID: "pod", Saved: res.Saved}); err != nil {
				return err
			}
			for _, program := range []string{"iptables", "ip6tables"} {
				rules := fmt.Sprintf(`%[1]s -t nat -S POSTROUTING | grep '\\"pod\\"' | sed 's/^-A/%[1]s -t nat -D/' | sh -e`, program)
				if out, err := exec.CommandContext(t.Context(), "sh", "-c", rules).CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
			return sweep(t, n)
		},
	} {
		t.Run(name, func(t *testing.T) {
			res, netns := attach("pod")
			if err := c(res, netns); err != nil {
				t.Fatal(err)
			}
			if now := world(t, leases); !slices.Equal(before, now) {
				t.Fatalf("left behind:\nbefore %q\nnow    %q", before, now)
			}
		})
	}
	if err := n.Detach(t.Context(), cni.Attachment{ID: "other", Saved: other.Saved}); err != nil {
		t.Fatal(err)
	}
}

// sweep removes the rules of the pod, which must be there and told from the other's.
func sweep(t *testing.T, n *cni.Network) error {
	t.Helper()
	all, err := n.Masquerades(t.Context())
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, m := range all {
		if m.Network != "real" || !m.Ours {
			t.Errorf("rules of network %q, ours: %v", m.Network, m.Ours)
		}
		seen[m.ID] = true
		if m.ID == "pod" {
			err = n.RemoveMasquerade(t.Context(), m)
		}
	}
	if len(all) != 2 || !seen["pod"] || !seen["other"] {
		t.Errorf("rules of %v are found", seen)
	}
	return err
}
