// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

// mounts tells pinned namespaces (mounts of nsfs) from others.
func mounts(_ context.Context, _ Where, out World) error {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	out["mounts"], out["namespace pins"] = nil, nil
	for _, m := range all {
		kind := "mounts"
		if m.FSType == "nsfs" {
			kind = "namespace pins"
		}
		out[kind] = append(out[kind], m.Mountpoint)
	}
	return nil
}

func links(_ context.Context, _ Where, out World) error {
	all, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("links: %w", err)
	}
	out["network links"] = nil
	for _, l := range all {
		out["network links"] = append(out["network links"], l.Attrs().Name)
	}
	return nil
}

// rules are those of nftables, which iptables-nft's are a part of.
func rules(ctx context.Context, _ Where, out World) error {
	text, err := exec.CommandContext(ctx, "nft", "--stateless", "list", "ruleset").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nft list ruleset: %w", err)
	}
	out["firewall rules"] = nil
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "}" && !strings.HasSuffix(line, "{") {
			out["firewall rules"] = append(out["firewall rules"], line)
		}
	}
	return nil
}

func leases(_ context.Context, w Where, out World) error {
	if w.Leases == "" {
		return nil
	}
	out["address leases"] = nil
	return walk(w.Leases, func(path string, e fs.DirEntry) error {
		name := e.Name()
		if !e.IsDir() && name != "lock" && !strings.HasPrefix(name, "last_reserved_ip") {
			out["address leases"] = append(out["address leases"], name)
		}
		return nil
	})
}

// standing are the daemon's own directories that it makes when it first needs them, and
// keeps; what is in them is counted.
var standing = map[string]bool{"tmp": true, "networks": true, "cni": true, "cni/results": true}

// files counts what lies in the daemon's directories; containerd's own plugins' directories
// are left out but for the directories of overlay snapshots.
func files(_ context.Context, w Where, out World) error {
	for _, dir := range []string{w.State, w.Root} {
		if dir == "" {
			continue
		}
		err := walk(dir, func(path string, e fs.DirEntry) error {
			switch {
			case strings.HasPrefix(e.Name(), "io.containerd.") && e.IsDir():
				return filepath.SkipDir
			case e.Name() == "rootfs" && e.IsDir():
				out["directories"] = append(out["directories"], path)
				return filepath.SkipDir // an image's files, counted as a mount
			case e.IsDir() && standing[strings.TrimPrefix(path, dir+"/")]:
			case e.IsDir():
				out["directories"] = append(out["directories"], path)
			default:
				out["files"] = append(out["files"], path)
			}
			return nil
		})
		if err != nil {
			return err
		}
		snapshots := filepath.Join(dir, "io.containerd.snapshotter.v1.overlayfs", "snapshots")
		entries, err := os.ReadDir(snapshots)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			out["snapshot directories"] = append(out["snapshot directories"], filepath.Join(snapshots, e.Name()))
		}
	}
	return nil
}

func cgroups(_ context.Context, w Where, out World) error {
	if w.CgroupParent == "" {
		return nil
	}
	out["cgroups"] = nil
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return err
	}
	for _, m := range all {
		parent := filepath.Join(m.Mountpoint, w.CgroupParent)
		err := walk(parent, func(path string, e fs.DirEntry) error {
			if e.IsDir() && path != parent {
				out["cgroups"] = append(out["cgroups"], path)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func processes(_ context.Context, w Where, out World) error {
	if !w.Processes {
		return nil
	}
	out["processes"] = nil
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		if err != nil {
			continue // gone meanwhile
		}
		name := strings.TrimSpace(string(comm))
		if !slices.Contains(w.IgnoreProcesses, name) {
			out["processes"] = append(out["processes"], name)
		}
	}
	return nil
}

// sockets are listening unix sockets, and abstract ones, of this network namespace.
func sockets(_ context.Context, _ Where, out World) error {
	raw, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return err
	}
	out["unix sockets"] = nil
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		const listening = "00010000"
		if len(f) == 8 && (f[3] == listening || strings.HasPrefix(f[7], "@")) {
			out["unix sockets"] = append(out["unix sockets"], f[7])
		}
	}
	return sc.Err()
}

// walk is filepath.WalkDir that does not mind what is missing or goes meanwhile.
func walk(dir string, f func(path string, e fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return f(path, e)
	})
}
