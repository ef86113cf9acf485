// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/sandflow-cri/sandflow/hack/images"
)

// Options are what tests vary in a daemon's configuration.
type Options struct {
	// Name keeps the directories of two daemons of one laboratory apart.
	Name string
	// Address is the socket of a containerd to attach to; empty: embedded.
	Address string
	// ConfDir and BinDirs are CNI's; empty: the laboratory's own.
	ConfDir string
	BinDirs []string
	// LogLevel is sandflowd's; empty: debug.
	LogLevel string
	// Extra is put at the end of the configuration file.
	Extra string
	// HideCgroup2 runs the daemon in a mount namespace without the cgroup2 mount beside
	// those of cgroup v1.
	HideCgroup2 bool
	// Program is another binary than sandflowd in the build directory, Shim another shim.
	Program, Shim string
}

func (o Options) withDefaults(l *Lab, name string) Options {
	if o.Name == "" {
		o.Name = name
	}
	if o.ConfDir == "" {
		o.ConfDir = l.ConfDir()
	}
	if len(o.BinDirs) == 0 {
		o.BinDirs = []string{filepath.Join(l.Build, "cni"), filepath.Join(l.Build, "bin")}
	}
	if o.LogLevel == "" {
		o.LogLevel = "debug"
	}
	if o.Program == "" {
		o.Program = l.Bin(name)
	}
	return o
}

// ConfDir is the laboratory's directory of network configurations.
func (l *Lab) ConfDir() string { return filepath.Join(l.Dir, "net.d") }

// CertsDir is the laboratory's directory of registry hosts.
func (l *Lab) CertsDir() string { return filepath.Join(l.Dir, "certs.d") }

type values struct {
	Options
	*Lab
	Root, State, Socket, Admin, Containerd, NRI, Certs, Shim, Runc, Pause string
}

var sandflowConfig = template.Must(template.New("sandflow").Parse(`root = {{printf "%q" .Root}}
state = {{printf "%q" .State}}
[cri]
socket = {{printf "%q" .Socket}}
[admin]
socket = {{printf "%q" .Admin}}
[log]
level = {{printf "%q" .LogLevel}}
[containerd]
address = {{printf "%q" .Address}}
socket = {{printf "%q" .Containerd}}
config_path = {{printf "%q" .Certs}}
[cni]
conf_dir = {{printf "%q" .ConfDir}}
bin_dirs = [{{range .BinDirs}}{{printf "%q" .}}, {{end}}]
[nri]
socket_path = {{printf "%q" .NRI}}
plugin_path = {{printf "%q" (print .Root ".nri")}}
[runtime]
shim = {{printf "%q" .Shim}}
sandbox_image = {{printf "%q" .Pause}}
default_cgroup_parent = {{printf "%q" .CgroupParent}}
[runtime.handlers.runc]
binary = {{printf "%q" .Runc}}
{{.Extra}}
`))

var upstreamConfig = template.Must(template.New("containerd").Parse(`version = 3
root = {{printf "%q" .Root}}
state = {{printf "%q" .State}}
[grpc]
  address = {{printf "%q" .Containerd}}
[ttrpc]
  address = {{printf "%q" (print .Containerd ".ttrpc")}}
[plugins."io.containerd.nri.v1.nri"]
  socket_path = {{printf "%q" .NRI}}
  plugin_path = {{printf "%q" (print .Root ".nri")}}
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [{{range .BinDirs}}{{printf "%q" .}}, {{end}}]
    conf_dir = {{printf "%q" .ConfDir}}
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = {{printf "%q" .Runc}}
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = {{printf "%q" .Pause}}
[plugins."io.containerd.cri.v1.images".registry]
  config_path = {{printf "%q" .Certs}}
{{.Extra}}
`))

// Sandflow makes a sandflowd with a configuration of its own; it is not started.
func (l *Lab) Sandflow(o Options) (*Daemon, error) {
	return l.daemon(o.withDefaults(l, "sandflowd"), "sandflow.sock", sandflowConfig)
}

// Upstream makes an ordinary containerd, as a peer and to attach to; it is not started.
func (l *Lab) Upstream(o Options) (*Daemon, error) {
	return l.daemon(o.withDefaults(l, "containerd"), "containerd.sock", upstreamConfig)
}

func (l *Lab) daemon(o Options, socket string, config *template.Template) (*Daemon, error) {
	v := values{
		Options: o, Lab: l,
		Root:  filepath.Join(l.Dir, o.Name),
		State: filepath.Join("/run", o.Name),
		Certs: l.CertsDir(), Shim: cmp.Or(o.Shim, l.Bin("containerd-shim-sandflow-v1")), Runc: l.Bin("runc"), Pause: images.Pause,
	}
	v.Socket = filepath.Join(v.State, socket)
	v.Containerd = filepath.Join(v.State, "containerd.sock")
	v.Admin = filepath.Join(v.State, "admin.sock")
	v.NRI = filepath.Join(v.State, "nri.sock")
	file := filepath.Join(l.Dir, o.Name+".toml")
	d := &Daemon{
		Name: o.Name, Socket: v.Socket, Containerd: v.Containerd, NRI: v.NRI, Root: v.Root, State: v.State,
		Log: filepath.Join(l.Dir, o.Name+".log"), lab: l,
		Command: []string{o.Program, "--config", file}, program: filepath.Base(o.Program),
	}
	if o.HideCgroup2 {
		hide := `for m in $(findmnt -rno TARGET -t cgroup2); do [ "$m" = /sys/fs/cgroup ] || umount "$m"; done; exec "$@"`
		d.Command = append([]string{"unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh"}, d.Command...)
	}
	if o.Address != "" {
		d.Containerd = o.Address
	}
	var b bytes.Buffer
	if err := config.Execute(&b, v); err != nil {
		return nil, fmt.Errorf("could not write the configuration of %s: %w", o.Name, err)
	}
	return d, os.WriteFile(file, b.Bytes(), 0o644)
}

// network is a bridge with addresses of both families, and host ports.
const network = `{
  "cniVersion": "1.0.0",
  "name": "lab",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "sandflow0",
      "isGateway": true,
      "ipMasq": true,
      "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "dataDir": %q,
        "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}%s
  ]
}
`

// WriteNetwork writes the laboratory's network configuration into a directory. More plugins
// may be put at the end of the chain, each a JSON object.
func (l *Lab) WriteNetwork(dir string, more ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tail := ""
	for _, m := range more {
		tail += ",\n    " + m
	}
	text := fmt.Sprintf(network, filepath.Join(l.Dir, "leases"), tail)
	return os.WriteFile(filepath.Join(dir, "10-lab.conflist"), []byte(text), 0o644)
}
