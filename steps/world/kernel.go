// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

// mounts tells pinned namespaces (mounts of nsfs) from others. Those of
// containerd itself come and go with pulls.
func mounts(_ context.Context, l *look) error {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for _, m := range all {
		kind := Mounts
		if m.FSType == "nsfs" {
			kind = NamespacePins
		}
		id := idIn(m.Mountpoint)
		ours := id != "" && (below(m.Mountpoint, l.State) || below(m.Mountpoint, l.Root))
		if l.Node || ours {
			l.add(kind, m.Mountpoint, id)
		}
	}
	return nil
}

// links are those whose other end is in the network namespace of a pod, and
// those at the bridges of our networks.
func links(_ context.Context, l *look) error {
	all, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list network links: %w", err)
	}
	pods, err := l.netNamespaces()
	if err != nil {
		return err
	}
	bridges := map[int]bool{}
	for _, link := range all {
		if a := link.Attrs(); l.networks.bridges[a.Name] {
			bridges[a.Index] = true
		}
	}
	for _, link := range all {
		a := link.Attrs()
		id, ours := "", false
		if a.NetNsID >= 0 {
			id, ours = pods[a.NetNsID]
		}
		if l.Node || ours || link.Type() == "veth" && bridges[a.MasterIndex] {
			l.add(Links, a.Name, id)
		}
	}
	return nil
}

// netNamespaces maps the kernel's ID of a pinned network namespace, as links
// have it, to the pod.
func (l *look) netNamespaces() (map[int]string, error) {
	pins, err := filepath.Glob(podNetNS(l.State, "*"))
	if err != nil || l.State == "" {
		return nil, err
	}
	out := map[int]string{}
	for _, pin := range pins {
		f, err := os.Open(pin)
		if err != nil {
			continue // gone meanwhile
		}
		n, err := netlink.GetNetNsIdByFd(int(f.Fd()))
		_ = f.Close()
		if err == nil && n >= 0 {
			out[n] = idIn(pin)
		}
	}
	return out, nil
}

// listening are the listening unix sockets, and abstract ones, of this network
// namespace: also those whose file is gone.
func listening(_ context.Context, l *look) error {
	raw, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return fmt.Errorf("list unix sockets: %w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		const listening = "00010000"
		if len(f) != 8 || f[3] != listening && !strings.HasPrefix(f[7], "@") {
			continue
		}
		name := f[7]
		id := idIn(name)
		if l.Node || id != "" && below(name, l.State) {
			l.add(ListeningSockets, name, id)
		}
	}
	return sc.Err()
}
