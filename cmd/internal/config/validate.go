// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
)

// maxSocketPath is the longest path of a unix socket: sun_path less its final zero, and one to spare.
const maxSocketPath = 106

// podSocketRoom is what the longest socket below State needs beyond State: the
// shim's socket of a pod with a 64-character ID.
const podSocketRoom = len("/pods//shim/s") + 64

// maxContainerdPath is shorter: containerd wants 104, and serves ttrpc beside it.
const maxContainerdPath = 104 - len(".ttrpc")

// checker collects faults.
type checker struct {
	c    *Config
	errs []error
}

func (k *checker) fault(path, format string, args ...any) {
	k.errs = append(k.errs, k.c.Fault(path, fmt.Sprintf(format, args...)))
}

// Validate checks values against each other; Parse and Load have called it. The
// names of actions are checked where actions are known (assembly.Check).
func (c *Config) Validate() error {
	k := &checker{c: c}
	k.paths()
	k.sockets()
	k.addresses()
	k.containerd()
	k.runtime()
	k.handlers()
	k.nri()
	k.flows()
	k.cleanup()
	return errors.Join(k.errs...)
}

func (k *checker) absolute(path, value string) {
	switch {
	case value == "":
		k.fault(path, "must not be empty")
	case !filepath.IsAbs(value):
		k.fault(path, "%q is not an absolute path", value)
	case filepath.Clean(value) != value:
		k.fault(path, "%q is not a clean path (want %q)", value, filepath.Clean(value))
	}
}

func (k *checker) oneOf(path, value string, known ...string) {
	if !slices.Contains(known, value) {
		k.errs = append(k.errs, k.c.Fault(path, fmt.Sprintf("%q is not possible", value), quoted(known)...))
	}
}

func quoted(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return out
}

func (k *checker) paths() {
	c := k.c
	k.absolute("root", c.Root)
	k.absolute("state", c.State)
	if c.Root != "" && (within(c.Root, c.State) || within(c.State, c.Root)) {
		k.fault("state", "must not be the same directory as root, nor above or below it: a reboot may empty it")
	}
	k.absolute("cni.conf_dir", c.CNI.ConfDir)
	if len(c.CNI.BinDirs) == 0 {
		k.fault("cni.bin_dirs", "must name at least one directory")
	}
	for i, d := range c.CNI.BinDirs {
		k.absolute(at("cni.bin_dirs", i), d)
	}
	for i, d := range c.Runtime.CDIDirs {
		k.absolute(at("runtime.cdi_dirs", i), d)
	}
	if c.CNI.MaxConf < 0 {
		k.fault("cni.max_conf", "must not be negative")
	}
	k.oneOf("cni.ip_preference", c.CNI.IPPreference, "cni", "ipv4", "ipv6")
}

func (k *checker) sockets() {
	c := k.c
	all := map[string]string{"cri.socket": c.CRI.Socket, "admin.socket": c.Admin.Socket}
	if c.Containerd.Address == "" {
		all["containerd.socket"] = c.Containerd.Socket
	}
	n := len(c.State) + podSocketRoom
	if n > maxSocketPath {
		k.fault("state", "%q is too long by %d bytes: sockets of pods below it must fit into %d bytes",
			c.State, n-maxSocketPath, maxSocketPath)
	}
	owner := map[string]string{}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		s := all[path]
		if n > maxSocketPath && strings.HasPrefix(s, c.State+"/") {
			continue // said once
		}
		k.absolute(path, s)
		limit := maxSocketPath
		if path == "containerd.socket" {
			limit = maxContainerdPath
		}
		if len(s) > limit {
			k.fault(path, "the path has %d bytes; this unix socket's has at most %d", len(s), limit)
		}
		if other, taken := owner[s]; taken {
			k.fault(path, "is the same socket as %s", other)
		}
		owner[s] = path
	}
}

func (k *checker) addresses() {
	c := k.c
	if net.ParseIP(c.CRI.StreamAddress) == nil {
		k.fault("cri.stream_address", "%q is not an IP address", c.CRI.StreamAddress)
	}
	if c.CRI.StreamPort < 0 || c.CRI.StreamPort > 65535 {
		k.fault("cri.stream_port", "%d is not a port", c.CRI.StreamPort)
	}
	if c.CRI.MaxExecPerContainer < 0 {
		k.fault("cri.max_exec_per_container", "must not be negative; 0 is unlimited")
	}
	if c.CRI.MaxMessage < 4<<20 || c.CRI.MaxMessage > 1<<30 {
		k.fault("cri.max_message", "must be between 4MiB and 1GiB")
	}
	if a := c.Metrics.Address; a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			k.fault("metrics.address", "%q is not host:port", a)
		}
	}
	k.oneOf("log.level", c.Log.Level, "error", "warn", "info", "debug", "trace")
	k.oneOf("log.format", c.Log.Format, "text", "json")
}

func (k *checker) containerd() {
	c := k.c.Containerd
	if c.Address != "" {
		k.absolute("containerd.address", c.Address)
		if len(c.Plugins) > 0 {
			k.fault("containerd.plugins", "has no effect on a containerd that is attached to (containerd.address)")
		}
	}
	if c.Namespace == "" {
		k.fault("containerd.namespace", "must not be empty")
	}
	if c.Snapshotter == "" {
		k.fault("containerd.snapshotter", "must not be empty")
	}
	for _, dir := range filepath.SplitList(c.RegistryConfigPath) {
		k.absolute("containerd.config_path", dir)
	}
	for _, id := range slices.Sorted(maps.Keys(c.Plugins)) {
		if _, ok := c.Plugins[id].(map[string]any); !ok {
			k.fault(join("containerd.plugins", id), "want a table, not %s", describe(c.Plugins[id]))
		}
	}
}

func (k *checker) runtime() {
	r := k.c.Runtime
	if _, ok := r.Handlers[r.Default]; !ok {
		names := slices.Sorted(maps.Keys(r.Handlers))
		k.errs = append(k.errs, k.c.Fault("runtime.default",
			fmt.Sprintf("there is no runtime handler %q", r.Default), quoted(names)...))
	}
	switch {
	case r.Shim == "":
		k.fault("runtime.shim", "must not be empty")
	case strings.Contains(r.Shim, "/"):
		k.absolute("runtime.shim", r.Shim)
	}
	k.oneOf("runtime.cgroup_driver", r.CgroupDriver, DriverAuto, DriverCgroupfs, DriverSystemd)
	k.oneOf("runtime.seccomp_default", r.SeccompDefault, "", "RuntimeDefault")
	k.cgroupParent()
	if r.MaxLogLine < 256 || r.MaxLogLine > 16<<20 {
		k.fault("runtime.max_log_line", "must be between 256 bytes and 16MiB")
	}
}

func (k *checker) cgroupParent() {
	const path = "runtime.default_cgroup_parent"
	parent := k.c.Runtime.DefaultCgroupParent
	if parent == "" {
		return
	}
	if k.c.CgroupDriver() == DriverSystemd {
		if !strings.HasSuffix(parent, ".slice") || strings.Contains(parent, "/") {
			k.fault(path, "%q is not the name of a slice, as the systemd cgroup driver wants", parent)
		}
		return
	}
	k.absolute(path, parent)
}

// sandboxContainer checks a handler that wants a container to hold its pods' namespaces.
func (k *checker) sandboxContainer(path string, h Handler) {
	if h.Type == TypeSandflow {
		k.fault(path+".sandbox", "a pod of type \"sandflow\" has no sandbox container: name another shim v2 runtime in %s.type", path)
	}
	if k.c.Runtime.SandboxImage == "" {
		k.fault(path+".sandbox", "a sandbox container needs runtime.sandbox_image")
	}
}

func (k *checker) handlers() {
	for _, name := range slices.Sorted(maps.Keys(k.c.Runtime.Handlers)) {
		h, path := k.c.Runtime.Handlers[name], join("runtime.handlers", name)
		if h.Type != TypeSandflow && !filepath.IsAbs(h.Type) && !strings.HasPrefix(h.Type, "io.containerd.") {
			k.fault(path+".type", "%q is neither \"sandflow\", nor the name of a shim v2 runtime (io.containerd.…), nor an absolute path", h.Type)
		}
		k.oneOf(path+".sandbox", h.Sandbox, SandboxShim, SandboxContainer)
		if h.Type == TypeSandflow {
			switch {
			case h.Binary == "":
				k.fault(path+".binary", "must not be empty")
			case strings.Contains(h.Binary, "/"):
				k.absolute(path+".binary", h.Binary)
			}
		}
		if h.Sandbox == SandboxContainer {
			k.sandboxContainer(path, h)
		}
		for i, pattern := range h.Annotations {
			if _, err := filepath.Match(pattern, ""); err != nil {
				k.fault(at(path+".annotations", i), "%q is not a pattern", pattern)
			}
		}
	}
}

func (k *checker) nri() {
	n := k.c.NRI
	k.absolute("nri.socket_path", n.SocketPath)
	if len(n.SocketPath) > maxSocketPath {
		k.fault("nri.socket_path", "the path has %d bytes; this unix socket's has at most %d", len(n.SocketPath), maxSocketPath)
	}
	for path, s := range map[string]string{
		"cri.socket": k.c.CRI.Socket, "admin.socket": k.c.Admin.Socket, "containerd.socket": k.c.Containerd.Socket,
	} {
		if s == n.SocketPath {
			k.fault("nri.socket_path", "is the same socket as %s", path)
		}
	}
	k.absolute("nri.plugin_path", n.PluginPath)
	k.absolute("nri.plugin_config_path", n.PluginConfigPath)
	k.positive("nri.plugin_registration_timeout", n.RegistrationTimeout)
	k.positive("nri.plugin_request_timeout", n.RequestTimeout)
	k.positive("nri.plugin_sync_timeout", n.SyncTimeout)
}

func (k *checker) positive(path string, d Duration) {
	if d <= 0 {
		k.fault(path, "must be above zero")
	}
}

func (k *checker) flows() {
	for _, w := range k.c.flows() {
		for _, f := range w.flows {
			path := join(join("workflows", w.name), f.name)
			if f.concurrent < 0 {
				k.fault(path+".concurrent", "must not be negative; 0 is unlimited")
			}
			if f.queue < 0 {
				k.fault(path+".queue", "must not be negative")
			}
			if f.queue > 0 && f.concurrent == 0 {
				k.fault(path+".queue", "has no effect on an unlimited flow (concurrent = 0)")
			}
		}
	}
}

func (k *checker) cleanup() {
	c := k.c.Cleanup
	if c.MinBackoff <= 0 {
		k.fault("cleanup.min_backoff", "must be above zero")
	}
	if c.MaxBackoff < c.MinBackoff {
		k.fault("cleanup.max_backoff", "must not be below min_backoff (%s)", c.MinBackoff)
	}
	if c.UndoTimeout <= 0 {
		k.fault("cleanup.undo_timeout", "must be above zero")
	}
}

// within tells whether path is dir or below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
