// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/sandflow-cri/sandflow/hack/conformance"
	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
	"github.com/sandflow-cri/sandflow/hack/machine"
)

// machineDir is where the tests run in the machine, machineIP the node's address, labIP that of
// the laboratory.
const (
	machineDir = "/var/lib/e2e"
	machineIP  = "10.80.0.2"
	labIP      = "10.80.0.1"
)

// runtimeOf is how a runtime is put on the machine.
type runtimeOf struct {
	unit, socket, process string
	cgroup                string   // of the daemon
	programs              []string // to /usr/bin
	files                 map[string]string
}

// Kubernetes' tests have a runtime class with this handler.
const sandflowConfig = `[log]
level = "debug"
[runtime]
cgroup_driver = "cgroupfs"
[runtime.handlers.runc]
binary = "runc"
[runtime.handlers.test-handler]
binary = "runc"
`

//go:embed machine.toml
var containerdConfig string

const containerdUnit = `[Unit]
Description=containerd
[Service]
Type=notify
ExecStart=/usr/bin/containerd
Delegate=yes
KillMode=process
Restart=always
RestartSec=2
LimitNOFILE=1048576
TasksMax=infinity
`

var runtimes = map[cluster.Runtime]runtimeOf{
	cluster.Embedded: {
		unit: "sandflowd", socket: "/run/sandflow/sandflow.sock", process: "sandflowd", cgroup: "/sandflow.slice/sandflowd.service",
		programs: []string{"sandflowd", "sandflow", "containerd-shim-sandflow-v1"},
		files: map[string]string{
			"/etc/sandflow/config.toml": sandflowConfig,
		},
	},
	cluster.Upstream: {
		unit: "containerd", socket: "/run/containerd/containerd.sock", process: "containerd", cgroup: "/system.slice/containerd.service",
		programs: []string{"containerd", "containerd-shim-runc-v2"},
		files: map[string]string{
			"/etc/containerd/config.toml":            containerdConfig,
			"/etc/systemd/system/containerd.service": containerdUnit,
		},
	},
}

// node is a machine for e2e_node.test.
type node struct {
	*machine.Machine

	lab     *harness.Lab
	options Options
	runtime runtimeOf
}

// OnMachine runs the specs that only e2e_node.test has, on a machine with systemd in the
// laboratory.
func OnMachine(ctx context.Context, l *harness.Lab, o Options) (_ []conformance.Spec, err error) {
	restore, err := cluster.KeepSysctls()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, restore()) }()
	m, err := machine.New(l)
	if err != nil {
		return nil, err
	}
	n := &node{Machine: m, lab: l, options: o, runtime: runtimes[o.Runtime]}
	defer func() { err = errors.Join(err, n.keepLogs(ctx), n.PowerOff()) }()
	if err := n.Boot(ctx); err != nil {
		return nil, err
	}
	if err := n.plug(ctx); err != nil {
		return nil, err
	}
	registry, err := images.ServeAt(ctx, l.Images(), labIP+":0")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	if err := registry.Add(ctx, Images(l)); err != nil {
		return nil, err
	}
	if err := n.setUp(ctx, registry); err != nil {
		return nil, fmt.Errorf("could not set the machine up: %w", err)
	}
	fmt.Fprintf(o.Out, "a machine with %s is ready\n", n.runtime.unit)
	return n.suite().run(ctx)
}

func (n *node) suite() suite {
	return suite{
		name: "e2e_node", program: "/usr/local/bin/e2e_node.test", options: n.options,
		flags: []string{"--skip-file", skipFiles},
		dir:   machineDir, seen: n.Path(machineDir),
		args: []string{
			"--container-runtime-endpoint=unix://" + n.runtime.socket,
			"--container-runtime-process-name=" + n.runtime.process, "--container-runtime-pid-file=",
			"--prepull-images=false", "--restart-kubelet=false", "--report-dir=" + machineDir,
			"--kubelet-config-file=" + machineDir + "/kubelet.yaml",
			"--kubelet-flags=--node-ip=" + machineIP + " --runtime-cgroups=" + n.runtime.cgroup,
			"--feature-gates=PodAndContainerStatsFromCRI=true", "--system-spec-file=" + machineDir + "/system.yaml",
		},
		command: func(ctx context.Context, name string, args ...string) *exec.Cmd {
			in := []string{"--chdir", machineDir, "/usr/local/bin/" + name}
			return n.Command(ctx, "env", append(in, args...)...)
		},
	}
}

// plug connects the machine's network with the laboratory's.
func (n *node) plug(ctx context.Context) error {
	pid := strconv.Itoa(n.PID())
	for _, args := range [][]string{
		{"link", "add", "kube0", "type", "veth", "peer", "name", "eth0", "netns", pid},
		{"addr", "add", labIP + "/24", "dev", "kube0"},
		{"link", "set", "kube0", "up"},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("could not plug the machine in: %w: %s", err, out)
		}
	}
	for _, args := range [][]string{
		{"addr", "add", machineIP + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", "default", "via", labIP},
	} {
		if _, err := n.Run(ctx, "ip", args...); err != nil {
			return fmt.Errorf("could not plug the machine in: %w", err)
		}
	}
	return nil
}

// setUp puts everything on the machine and starts the runtime.
func (n *node) setUp(ctx context.Context, registry *images.Registry) error {
	for _, name := range []string{"runc", "ginkgo", "kubelet", "etcd"} {
		if err := n.program(name, "/usr/local/bin"); err != nil {
			return err
		}
	}
	if err := n.tests(); err != nil {
		return err
	}
	for _, name := range n.runtime.programs {
		if err := n.program(name, "/usr/bin"); err != nil {
			return err
		}
	}
	plugins, err := filepath.Glob(filepath.Join(n.lab.Build, "cni", "*"))
	if err != nil {
		return err
	}
	for _, plugin := range plugins {
		if err := n.put(plugin, "/opt/cni/bin/"+filepath.Base(plugin), 0o755); err != nil {
			return err
		}
	}
	if err := n.files(registry); err != nil {
		return err
	}
	for _, command := range [][]string{
		// kubelet changes what the machine must otherwise leave alone, and reads the kernel's log.
		{"mount", "-o", "remount,bind,rw", "/proc/sys"},
		{"mount", "-o", "remount,bind,rw", "/sys"},
		{"mknod", "/dev/kmsg", "c", "1", "11"},
		{"sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.route_localnet=1"},
		{"systemctl", "daemon-reload"},
		{"systemctl", "start", n.runtime.unit},
	} {
		if _, err := n.Run(ctx, command[0], command[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// askedDigest is the digest by which the tests pull an image ahead. It cannot be made anew, so
// that their copy on the machine asks for ours.
const askedDigest = "a9155b13325b2abef48e71de77bb8ac015412a566829f621d06bfae5c699b1b9"

// tests puts e2e_node.test on the machine.
func (n *node) tests() error {
	digest, err := images.Digest(Images(n.lab), images.KubernetesBusybox)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(n.lab.Bin("e2e_node.test"))
	if err != nil {
		return err
	}
	if !bytes.Contains(raw, []byte(askedDigest)) {
		return errors.New("e2e_node.test does not ask for the known digest: another version?")
	}
	raw = bytes.ReplaceAll(raw, []byte(askedDigest), []byte(digest.Hex))
	return n.write("/usr/local/bin/e2e_node.test", string(raw), 0o755)
}

//go:embed kubelet.yaml
var kubeletConfig string

//go:embed system.yaml
var systemSpec string

//go:embed pods.conflist
var conflist string

// sudo is what tests call to become root, which they are.
const sudo = "#!/bin/sh\nexec \"$@\"\n"

// files writes the machine's configuration.
func (n *node) files(registry *images.Registry) error {
	certs := filepath.Join(n.lab.Dir, "certs.d")
	if err := registry.WriteHosts(certs); err != nil {
		return err
	}
	units, err := filepath.Glob("../../../deploy/systemd/*.s*i*e")
	if err != nil {
		return err
	}
	errs := []error{
		n.put(filepath.Join(certs, "_default", "hosts.toml"), "/etc/containerd/certs.d/_default/hosts.toml", 0o644),
		n.write("/etc/containerd/certs.d/localhost:5000/hosts.toml", "server = \"http://localhost:5000\"\n", 0o644),
		n.write("/etc/cni/net.d/10-pods.conflist", conflist, 0o644),
		n.write("/usr/local/bin/sudo", sudo, 0o755),
		n.write(machineDir+"/kubelet.yaml", kubeletConfig, 0o644),
		n.write(machineDir+"/system.yaml", systemSpec, 0o644),
	}
	for _, unit := range units {
		errs = append(errs, n.put(unit, "/etc/systemd/system/"+filepath.Base(unit), 0o644))
	}
	for path, text := range n.runtime.files {
		t, err := template.New(path).Parse(text)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, map[string]string{"Pause": images.Pause}); err != nil {
			return err
		}
		errs = append(errs, n.write(path, b.String(), 0o644))
	}
	return errors.Join(errs...)
}

// program puts a program of the build directory into a directory of the machine.
func (n *node) program(name, dir string) error {
	return n.put(n.lab.Bin(name), dir+"/"+name, 0o755)
}

func (n *node) put(from, to string, mode os.FileMode) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return n.write(to, string(raw), mode)
}

func (n *node) write(path, text string, mode os.FileMode) error {
	if err := os.MkdirAll(n.Path(filepath.Dir(path)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(n.Path(path), []byte(text), mode)
}

// keepLogs copies kubelet's log and the runtime's.
func (n *node) keepLogs(ctx context.Context) error {
	to := filepath.Join(n.options.Reports, "machine")
	logs, err := filepath.Glob(n.Path(machineDir + "/*.log"))
	errs := []error{err}
	for _, log := range logs {
		errs = append(errs, copyFile(log, filepath.Join(to, filepath.Base(log))))
	}
	journal, err := n.Run(ctx, "journalctl", "--no-pager", "-o", "cat", "-u", n.runtime.unit)
	errs = append(errs, err, os.MkdirAll(to, 0o755), os.WriteFile(filepath.Join(to, n.runtime.unit+".log"), []byte(strings.TrimSpace(journal)+"\n"), 0o644))
	return errors.Join(errs...)
}
