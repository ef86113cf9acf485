// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses of a cluster. All of it is in the laboratory's network namespace and those of the
// nodes, so that two clusters never meet.
const (
	labBridge      = "kube0"
	labAddress     = "10.80.0.1"
	nodeNetwork    = "10.80.0.0/24"
	nodeAddresses  = "10.80.0.%d" // 10 + the node's number
	podNetwork     = "10.244.0.0/16"
	podRanges      = "10.244.%d.0/24"
	serviceNetwork = "10.96.0.0/16"
	apiService     = "10.96.0.1"
	dnsAddress     = "10.96.0.10"
)

// openBridge makes the network that nodes and control plane are in.
func openBridge() error {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: labBridge}}
	if err := netlink.LinkAdd(link); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("could not make bridge %s: %w", labBridge, err)
	}
	addr, err := netlink.ParseAddr(labAddress + "/24")
	if err != nil {
		return err
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("could not give bridge %s its address: %w", labBridge, err)
	}
	return netlink.LinkSetUp(link)
}

// closeBridge takes the network away.
func closeBridge() error {
	link, err := netlink.LinkByName(labBridge)
	if err != nil {
		return fmt.Errorf("could not find bridge %s: %w", labBridge, err)
	}
	return netlink.LinkDel(link)
}

func (n *Node) veth() string { return "kube-" + n.Name }

// plug connects a node: a veth pair to the bridge, and routes to and from its pods.
func (n *Node) plug() error {
	bridge, err := netlink.LinkByName(labBridge)
	if err != nil {
		return fmt.Errorf("could not find bridge %s: %w", labBridge, err)
	}
	if err := n.unplug(); err != nil {
		return err
	}
	pair := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: n.veth(), MasterIndex: bridge.Attrs().Index},
		PeerName:  "eth0", PeerNamespace: netlink.NsPid(n.init.Process.Pid),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("could not make the link of %s: %w", n.Name, err)
	}
	if err := netlink.LinkSetUp(pair); err != nil {
		return err
	}
	if err := n.address(); err != nil {
		return fmt.Errorf("could not set up the network of %s: %w", n.Name, err)
	}
	return route(nil, n.PodCIDR, n.IP)
}

// unplug takes the link away, which a dead node's namespace may still hold for a moment.
func (n *Node) unplug() error {
	link, err := netlink.LinkByName(n.veth())
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkDel(link); !errors.Is(err, unix.ENODEV) { // it goes with the node's namespace, too
		return err
	}
	return nil
}

// address configures the node's side.
func (n *Node) address() (err error) {
	ns, err := netns.GetFromPid(n.init.Process.Pid)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	addr, err := netlink.ParseAddr(n.IP + "/24")
	if err != nil {
		return err
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "eth0" {
			if err := h.AddrReplace(link, addr); err != nil {
				return err
			}
		}
		if err := h.LinkSetUp(link); err != nil {
			return err
		}
	}
	// Service addresses are looked up before kube-proxy changes them.
	if err := route(h, "0.0.0.0/0", labAddress); err != nil {
		return err
	}
	for _, other := range n.peers() {
		if err := route(h, other.PodCIDR, other.IP); err != nil {
			return err
		}
	}
	return nil
}

// route adds a route in a namespace, or in this process's own.
func route(h *netlink.Handle, to, via string) error {
	_, dst, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	r := &netlink.Route{Dst: dst, Gw: net.ParseIP(via)}
	if h == nil {
		err = netlink.RouteReplace(r)
	} else {
		err = h.RouteReplace(r)
	}
	if err != nil {
		return fmt.Errorf("could not add a route to %s: %w", to, err)
	}
	return nil
}
