// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"path/filepath"
	"strconv"
	"time"

	containerd "github.com/containerd/containerd/v2/client"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cmd/internal/version"
	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cri/streaming"
	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/nri"
	"github.com/sandflow-cri/sandflow/steps/runtime"
)

// Steps is the configuration of the actions.
func Steps(c *config.Config) steps.Config {
	out := steps.Config{
		State: c.State, Root: c.Root, Shim: c.Runtime.Shim,
		DefaultRuntime: c.Runtime.Default, Runtimes: map[string]steps.Runtime{},
		SandboxImage: c.Runtime.SandboxImage, CgroupDriver: c.CgroupDriver(), DefaultCgroupParent: c.CgroupParent(),
		MaxLogLine: int(c.Runtime.MaxLogLine), SeccompDefault: c.Runtime.SeccompDefault,
		PrivilegedWithoutHostDevices: c.Runtime.PrivilegedWithoutHostDevices,
		EnableUnprivilegedPorts:      c.Runtime.EnableUnprivilegedPorts,
		EnableUnprivilegedICMP:       c.Runtime.EnableUnprivilegedICMP,
		CDISpecDirs:                  c.Runtime.CDIDirs,
	}
	for name, h := range c.Runtime.Handlers {
		out.Runtimes[name] = steps.Runtime{
			Type: h.Type, Binary: h.Binary, Sandbox: h.Sandbox, SystemdCgroup: out.CgroupDriver == config.DriverSystemd,
			OCIVersion: h.OCIVersion, Annotations: h.Annotations, Snapshotter: h.Snapshotter, Options: h.Options,
		}
	}
	return out
}

// Store is the configuration of containerd, inside or attached to.
func Store(c *config.Config) snapshot.Config {
	return snapshot.Config{
		Address: c.Containerd.Address, Socket: c.Containerd.Socket,
		Root: filepath.Join(c.Root, "containerd"), State: filepath.Join(c.State, "containerd"),
		Namespace: c.Containerd.Namespace, Snapshotter: c.Containerd.Snapshotter,
		RegistryConfigPath: c.Containerd.RegistryConfigPath, SandboxImage: c.Runtime.SandboxImage,
		Plugins: c.Containerd.Plugins, PullProgressTimeout: time.Duration(c.Containerd.PullProgressTimeout),
		MirrorTimeout: time.Duration(c.Containerd.MirrorTimeout),
	}
}

// CNI is the configuration of pod networks.
func CNI(c *config.Config) cni.Config {
	out := cni.Config{
		ConfDir: c.CNI.ConfDir, BinDirs: c.CNI.BinDirs, CacheDir: filepath.Join(c.Root, "cni"),
		MaxConf: c.CNI.MaxConf,
	}
	if c.CNI.IPPreference != "cni" {
		out.IPPreference = c.CNI.IPPreference
	}
	return out
}

// Runtime is the configuration of shims and tasks.
func Runtime(c *config.Config, client func() *containerd.Client) runtime.Config {
	s := Steps(c)
	out := runtime.Config{
		State: c.State, Shim: s.Shim, MaxLogLine: s.MaxLogLine, Client: client,
		Namespace: c.Containerd.Namespace, Bundle: s.ContainerDir, Handlers: map[string]runtime.Handler{},
	}
	for name, h := range s.Runtimes {
		out.Handlers[name] = runtime.Handler{
			Type: h.Type, Binary: h.Binary, SystemdCgroup: h.SystemdCgroup, Options: h.Options,
		}
	}
	out.Handlers[""] = out.Handlers[c.Runtime.Default]
	return out
}

// NRI is the configuration of the plugin interface.
func NRI(c *config.Config) nri.Config {
	return nri.Config{
		Enable: c.NRI.Enable, SocketPath: c.NRI.SocketPath, DisableConnections: c.NRI.DisableConnections,
		PluginPath: c.NRI.PluginPath, PluginConfigPath: c.NRI.PluginConfigPath,
		RegistrationTimeout: time.Duration(c.NRI.RegistrationTimeout),
		RequestTimeout:      time.Duration(c.NRI.RequestTimeout), SyncTimeout: time.Duration(c.NRI.SyncTimeout),
		Name: "sandflow", Version: version.Version,
	}
}

// Streaming is the configuration of exec, attach and port-forward.
func Streaming(c *config.Config) streaming.Config {
	return streaming.Config{
		Address: c.CRI.StreamAddress, Port: strconv.Itoa(c.CRI.StreamPort),
		IdleTimeout:     time.Duration(c.CRI.StreamIdleTimeout),
		CreationTimeout: time.Duration(c.CRI.StreamCreationTimeout), MaxExecPerContainer: c.CRI.MaxExecPerContainer,
	}
}
