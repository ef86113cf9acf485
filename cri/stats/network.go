// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultInterface is the name that kubelet's conventions give a pod's first interface.
const defaultInterface = "eth0"

// Network reads the counters of the interfaces in the network namespace pinned at
// path, without lo. The default interface is eth0, or the first if there is none.
// An empty path (the node's network, which is no pod's) gives nil; a namespace
// that is gone is errdefs.ErrNotFound.
func (r *Reader) Network(path string) (*runtime.NetworkUsage, error) {
	if path == "" {
		return nil, nil
	}
	links, err := linksOf(path)
	if err != nil {
		return nil, fmt.Errorf("read network stats of %s: %w", path, err)
	}
	out := &runtime.NetworkUsage{Timestamp: r.now().UnixNano()}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Statistics == nil {
			continue
		}
		usage := interfaceUsage(a)
		switch {
		case out.GetDefaultInterface() == nil:
			out.DefaultInterface = usage
		case a.Name == defaultInterface:
			out.Interfaces = append(out.Interfaces, out.GetDefaultInterface())
			out.DefaultInterface = usage
		default:
			out.Interfaces = append(out.Interfaces, usage)
		}
	}
	return out, nil
}

// Interface is one of a network namespace with its counters.
type Interface struct {
	Name        string
	Received    Traffic
	Transmitted Traffic
}

// Traffic of an interface in one direction.
type Traffic struct{ Bytes, Packets, Dropped, Errors uint64 }

// Interfaces are those of the network namespace pinned at path, without lo. Errors as
// of Network.
func (r *Reader) Interfaces(path string) ([]Interface, error) {
	if path == "" {
		return nil, nil
	}
	links, err := linksOf(path)
	if err != nil {
		return nil, fmt.Errorf("read network metrics of %s: %w", path, err)
	}
	var all []Interface
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Statistics == nil {
			continue
		}
		n := a.Statistics
		all = append(all, Interface{
			Name:        a.Name,
			Received:    Traffic{n.RxBytes, n.RxPackets, n.RxDropped, n.RxErrors},
			Transmitted: Traffic{n.TxBytes, n.TxPackets, n.TxDropped, n.TxErrors},
		})
	}
	return all, nil
}

func interfaceUsage(a *netlink.LinkAttrs) *runtime.NetworkInterfaceUsage {
	return &runtime.NetworkInterfaceUsage{
		Name:    a.Name,
		RxBytes: value(a.Statistics.RxBytes), RxErrors: value(a.Statistics.RxErrors),
		TxBytes: value(a.Statistics.TxBytes), TxErrors: value(a.Statistics.TxErrors),
	}
}

func linksOf(path string) ([]netlink.Link, error) {
	ns, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close() //nolint:errcheck // a descriptor that was only read
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(ns), &st); err != nil {
		return nil, err
	}
	if st.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("no namespace is pinned there any more: %w", errdefs.ErrNotFound)
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.LinkList()
}
