// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config reads sandflow's one configuration file, TOML or JSON with the
// same keys, over the built-in default (default.toml). It refuses what it does
// not know, and says of everything that is wrong in which file, line and key.
package config

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	toml "github.com/pelletier/go-toml/v2"
)

// DefaultPath is where the configuration is looked for when none is named.
const DefaultPath = "/etc/sandflow/config.toml"

//go:embed default.toml
var defaultText []byte

// DefaultText is the built-in default as a commented TOML file.
func DefaultText() []byte { return append([]byte(nil), defaultText...) }

// Config is the whole configuration.
type Config struct {
	Root       string     `toml:"root"`
	State      string     `toml:"state"`
	CRI        CRI        `toml:"cri"`
	Admin      Admin      `toml:"admin"`
	Metrics    Metrics    `toml:"metrics"`
	Log        Log        `toml:"log"`
	Containerd Containerd `toml:"containerd"`
	CNI        CNI        `toml:"cni"`
	Runtime    Runtime    `toml:"runtime"`
	NRI        NRI        `toml:"nri"`
	Workflows  Workflows  `toml:"workflows"`
	Cleanup    Cleanup    `toml:"cleanup"`

	origin origin
}

// CRI is the socket kubelet speaks to and the server of exec, attach and port-forward.
type CRI struct {
	Socket                string   `toml:"socket"`
	MaxMessage            Size     `toml:"max_message"`
	StreamAddress         string   `toml:"stream_address"`
	StreamPort            int      `toml:"stream_port"`
	StreamIdleTimeout     Duration `toml:"stream_idle_timeout"`
	StreamCreationTimeout Duration `toml:"stream_creation_timeout"`
	MaxExecPerContainer   int      `toml:"max_exec_per_container"`
}

// Admin is the socket that the sandflow command speaks to.
type Admin struct {
	Socket string `toml:"socket"`
}

// Metrics is the HTTP address of Prometheus metrics and pprof; empty is off.
type Metrics struct {
	Address string `toml:"address"`
}

// Log says how much is logged and in which form.
type Log struct {
	Level  string `toml:"level"`
	Format string `toml:"format"`
}

// Containerd is the embedded containerd, or the one to attach to.
type Containerd struct {
	Address             string         `toml:"address"`
	Socket              string         `toml:"socket"`
	Namespace           string         `toml:"namespace"`
	Snapshotter         string         `toml:"snapshotter"`
	RegistryConfigPath  string         `toml:"config_path"`
	PullProgressTimeout Duration       `toml:"pull_progress_timeout"`
	MirrorTimeout       Duration       `toml:"mirror_timeout"`
	Plugins             map[string]any `toml:"plugins"`
}

// CNI says where network configurations and plugins lie.
type CNI struct {
	ConfDir      string   `toml:"conf_dir"`
	BinDirs      []string `toml:"bin_dirs"`
	MaxConf      int      `toml:"max_conf"`
	IPPreference string   `toml:"ip_preference"`
}

// Runtime is what containers run with.
type Runtime struct {
	Default                      string             `toml:"default"`
	Shim                         string             `toml:"shim"`
	SandboxImage                 string             `toml:"sandbox_image"`
	CgroupDriver                 string             `toml:"cgroup_driver"`
	DefaultCgroupParent          string             `toml:"default_cgroup_parent"`
	MaxLogLine                   Size               `toml:"max_log_line"`
	SeccompDefault               string             `toml:"seccomp_default"`
	PrivilegedWithoutHostDevices bool               `toml:"privileged_without_host_devices"`
	EnableUnprivilegedPorts      bool               `toml:"enable_unprivileged_ports"`
	EnableUnprivilegedICMP       bool               `toml:"enable_unprivileged_icmp"`
	CDIDirs                      []string           `toml:"cdi_dirs"`
	Handlers                     map[string]Handler `toml:"handlers"`
}

// Handler is one runtime handler.
type Handler struct {
	Type        string         `toml:"type"`
	Binary      string         `toml:"binary"`
	Sandbox     string         `toml:"sandbox"`
	OCIVersion  string         `toml:"oci_version"`
	Annotations []string       `toml:"annotations"`
	Snapshotter string         `toml:"snapshotter"`
	Options     map[string]any `toml:"options"`
}

func newHandler() Handler {
	return Handler{Type: TypeSandflow, Binary: "runc", Sandbox: SandboxShim}
}

// Values of Handler.Type, Handler.Sandbox and Runtime.CgroupDriver.
const (
	TypeSandflow     = "sandflow"
	SandboxShim      = "shim"
	SandboxContainer = "container"
	DriverAuto       = "auto"
	DriverCgroupfs   = "cgroupfs"
	DriverSystemd    = "systemd"
)

// NRI lets plugins of the Node Resource Interface take part.
type NRI struct {
	Enable              bool     `toml:"enable"`
	SocketPath          string   `toml:"socket_path"`
	DisableConnections  bool     `toml:"disable_connections"`
	PluginPath          string   `toml:"plugin_path"`
	PluginConfigPath    string   `toml:"plugin_config_path"`
	RegistrationTimeout Duration `toml:"plugin_registration_timeout"`
	RequestTimeout      Duration `toml:"plugin_request_timeout"`
	SyncTimeout         Duration `toml:"plugin_sync_timeout"`
}

// Workflows are the flows of pods, containers and images.
type Workflows struct {
	Sandbox   SandboxFlows   `toml:"sandbox"`
	Container ContainerFlows `toml:"container"`
	Image     ImageFlows     `toml:"image"`
}

// SandboxFlows are the flows of a pod.
type SandboxFlows struct {
	Create  UpFlow   `toml:"create"`
	Destroy DownFlow `toml:"destroy"`
	Cleanup DownFlow `toml:"cleanup"`
}

// ContainerFlows are the flows of a container.
type ContainerFlows struct {
	Create UpFlow   `toml:"create"`
	Start  UpFlow   `toml:"start"`
	Stop   DownFlow `toml:"stop"`
	Remove DownFlow `toml:"remove"`
}

// ImageFlows are the flows of an image.
type ImageFlows struct {
	Pull JobFlow `toml:"pull"`
}

// UpFlow is a flow that makes something.
type UpFlow struct {
	Concurrent int        `toml:"concurrent"`
	Queue      int        `toml:"queue"`
	Failover   bool       `toml:"failover"`
	Steps      [][]string `toml:"steps"`
}

// DownFlow is a flow that undoes; without steps it is the mirror of the flows up.
type DownFlow struct {
	Concurrent int        `toml:"concurrent"`
	Queue      int        `toml:"queue"`
	Steps      [][]string `toml:"steps"`
}

// JobFlow is a limited piece of work without steps.
type JobFlow struct {
	Concurrent int `toml:"concurrent"`
	Queue      int `toml:"queue"`
}

// Cleanup bounds undoing and its repetition.
type Cleanup struct {
	MinBackoff  Duration `toml:"min_backoff"`
	MaxBackoff  Duration `toml:"max_backoff"`
	UndoTimeout Duration `toml:"undo_timeout"`
}

// Duration is a time.Duration written as a string ("4h", "1m30s").
type Duration time.Duration

// String writes the duration the way the configuration does.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration the way the configuration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MarshalJSON writes the configuration in force as a file would have it.
func (c *Config) MarshalJSON() ([]byte, error) {
	type plain Config
	text, err := toml.Marshal((*plain)(c))
	if err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return json.Marshal(tree)
}

// Size is a number of bytes, written as an integer or as a string ("16MiB").
type Size int64

// JournalPath is the engine's journal of pods and containers.
func (c *Config) JournalPath() string { return filepath.Join(c.Root, "journal.db") }

// File is the file the configuration was read from; empty for the built-in default alone.
func (c *Config) File() string { return c.origin.file }
