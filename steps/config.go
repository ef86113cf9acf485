// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package steps

import "path/filepath"

// Config is the part of the configuration that actions read.
type Config struct {
	// State is the directory for what a reboot loses (default /run/sandflow).
	State string
	// Root is the directory for what a reboot keeps (default /var/lib/sandflow).
	Root string
	// Shim is the absolute path of containerd-shim-sandflow-v1.
	Shim string
	// DefaultRuntime is the key of Runtimes used for the empty runtime handler.
	DefaultRuntime string
	// Runtimes maps runtime handlers to what runs their containers.
	Runtimes map[string]Runtime
	// SandboxImage is the image of sandbox containers, for handlers with Sandbox "container".
	SandboxImage string
	// CgroupDriver is "cgroupfs" or "systemd".
	CgroupDriver string
	// DefaultCgroupParent holds the cgroups of pods that name no parent (default /sandflow).
	DefaultCgroupParent string
	// MaxLogLine is the length in bytes at which a log line is split into partial records.
	MaxLogLine int
	// SeccompDefault is the profile for containers that name none: "" (unconfined) or "RuntimeDefault".
	SeccompDefault string
	// PrivilegedWithoutHostDevices keeps the host's devices out of privileged containers.
	PrivilegedWithoutHostDevices bool
	// EnableUnprivilegedPorts sets net.ipv4.ip_unprivileged_port_start=0 in pods with their own network.
	EnableUnprivilegedPorts bool
	// EnableUnprivilegedICMP opens net.ipv4.ping_group_range in pods with their own network.
	EnableUnprivilegedICMP bool
	// CDISpecDirs are the directories searched for CDI specifications.
	CDISpecDirs []string
}

// Runtime is what a runtime handler runs its containers with.
type Runtime struct {
	// Type is "sandflow" for our own pod shim, or the name (io.containerd.kata.v2) or
	// absolute path of another shim v2 runtime.
	Type string
	// Binary is the OCI runtime (default runc): a name in PATH or an absolute path.
	Binary string
	// Sandbox is "shim" (no sandbox container) or "container" (a sandbox container from SandboxImage).
	Sandbox string
	// SystemdCgroup tells the OCI runtime to use systemd; set from CgroupDriver.
	SystemdCgroup bool
	// OCIVersion, if set, is written into the specs as their version (crun 1.8.1 wants 1.0.2).
	OCIVersion string
	// Annotations are patterns of pod annotations that reach the OCI spec.
	Annotations []string
	// Snapshotter overrides the store's.
	Snapshotter string
	// Options is handed to foreign shim v2 runtimes as their runtime options (TOML table).
	Options map[string]any
}

// PodsDir is the directory under State of all pods.
func (c Config) PodsDir() string { return filepath.Join(c.State, "pods") }

// PodDir is the directory under State of one pod: namespaces, shim socket, files.
func (c Config) PodDir(id string) string { return filepath.Join(c.PodsDir(), id) }

// ContainerDir is the directory under State of one container: its OCI bundle.
func (c Config) ContainerDir(id string) string { return filepath.Join(c.State, "containers", id) }

// VolumeDir is the directory under Root that holds copies of the image's volumes for one container.
func (c Config) VolumeDir(id string) string { return filepath.Join(c.Root, "volumes", id) }

// DumpDir is the directory that a container's processes are restored from: their dump is
// in its directory "checkpoint". It goes with the container's volumes.
func (c Config) DumpDir(id string) string { return filepath.Join(c.VolumeDir(id), "dump") }

// RuntimeFor returns the runtime of a handler ("" is the default); ok is false if there is none.
func (c Config) RuntimeFor(handler string) (Runtime, bool) {
	if handler == "" {
		handler = c.DefaultRuntime
	}
	r, ok := c.Runtimes[handler]
	return r, ok
}
