// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// boot says what a node is made of; it is what the node's process 1 is told.
type boot struct {
	Hostname string
	// Dir is the node's directory in the laboratory, Lab the laboratory's.
	Dir, Lab string
	// CNI has the network plugins.
	CNI string
}

// Parts of a node's directory.
const (
	partRun  = "run"  // a tmpfs, lost at a reboot
	partLib  = "lib"  // /var/lib
	partLog  = "log"  // /var/log
	partOpt  = "opt"  // /opt
	partEtc  = "etc"  // what the node has in /etc beyond the machine's
	partWork = "work" // for overlayfs
)

// Init is process 1 of a node. The caller has put it into namespaces of its own; it makes them
// a node, writes a line to its standard output, and reaps until it is killed. When it ends, so
// does all of the node.
func Init(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var b boot
	if err := json.Unmarshal(raw, &b); err != nil {
		return fmt.Errorf("could not read %s: %w", file, err)
	}
	if err := b.setUp(); err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString("ready\n"); err != nil {
		return err
	}
	return reap()
}

// reap waits for the children of others that have ended, for as long as the node lives.
func reap() error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid > 0 || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil && !errors.Is(err, unix.ECHILD) {
				return fmt.Errorf("could not reap: %w", err)
			}
			break
		}
	}
	return nil
}

func (b *boot) setUp() error {
	if err := unix.Sethostname([]byte(b.Hostname)); err != nil {
		return fmt.Errorf("could not set the host name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("could not make / private: %w", err)
	}
	for _, step := range []func() error{b.kernel, b.directories, b.sysctls} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("could not make / shared: %w", err)
	}
	return nil
}

// kernel mounts /proc and /sys of the node's own namespaces, and keeps the cgroups, but for a
// cgroup2 hierarchy beside those of cgroup v1, which crun refuses.
func (b *boot) kernel() error {
	const cgroups = "/sys/fs/cgroup"
	keep := filepath.Join(b.Dir, "cgroup")
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	for _, m := range []struct {
		what, where, kind string
		flags             uintptr
	}{
		{"proc", "/proc", "proc", 0},
		{cgroups, keep, "", unix.MS_MOVE},
		{"sysfs", "/sys", "sysfs", 0},
		{keep, cgroups, "", unix.MS_MOVE},
	} {
		if err := unix.Mount(m.what, m.where, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("could not mount %s at %s: %w", m.what, m.where, err)
		}
	}
	err := unix.Unmount(filepath.Join(cgroups, "unified"), 0)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("could not hide the cgroup2 hierarchy: %w", err)
	}
	return nil
}

// directories gives the node what is its own of the file system. The directories of images and
// layers are no overlays, since overlays of overlays are refused.
func (b *boot) directories() error {
	etc := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", filepath.Join(b.Dir, partEtc), filepath.Join(b.Dir, partWork))
	run := filepath.Join(b.Dir, partRun)
	for _, m := range []struct {
		what, where, kind, data string
	}{
		{"overlay", "/etc", "overlay", etc},
		{filepath.Join(b.Dir, partLib), "/var/lib", "", ""},
		{filepath.Join(b.Dir, partLog), "/var/log", "", ""},
		{filepath.Join(b.Dir, partOpt), "/opt", "", ""},
		{b.CNI, "/opt/cni/bin", "", ""},
		{b.Lab, filepath.Join(run, filepath.Base(b.Lab)), "", ""},
		{run, "/run", "", ""},
	} {
		flags := uintptr(0)
		if m.kind == "" {
			flags = unix.MS_BIND | unix.MS_REC
		}
		if err := unix.Mount(m.what, m.where, m.kind, flags, m.data); err != nil {
			return fmt.Errorf("could not mount %s at %s: %w", m.what, m.where, err)
		}
	}
	return nil
}

// sysctls are those of the node's network namespace that kubelet's and kube-proxy's manuals
// ask for.
func (b *boot) sysctls() error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":              "1",
		"net/ipv4/conf/all/route_localnet": "1",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return fmt.Errorf("could not set %s: %w", name, err)
		}
	}
	return nil
}
