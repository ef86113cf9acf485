// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

const (
	manifestDir    = "/etc/kubernetes/manifests"
	sandflowSocket = "/run/sandflow/sandflow.sock"
	upstreamSocket = "/run/containerd/containerd.sock"
	pauseImage     = images.Pause
)

// Node is one machine of a cluster: its own network, mount, PID, IPC and UTS namespaces, its own
// cgroup, /run, /etc, /opt, /var/lib and /var/log, and in it a runtime, kubelet and kube-proxy.
type Node struct {
	// Name is the name in the cluster and the host name.
	Name string
	// IP is the address in the laboratory, PodCIDR the network of the pods.
	IP, PodCIDR string
	// Socket is where CRI is served, AdminSocket where sandflow's admin API is (if sandflow
	// runs). The paths are good in the laboratory and in the node.
	Socket, AdminSocket string
	// CgroupRoot is the path below every cgroup hierarchy that holds the cgroups of pods.
	CgroupRoot string
	// Dir holds the node's files in the laboratory.
	Dir string

	lab     *harness.Lab
	kind    Runtime
	gates   map[string]bool
	crun    string // empty: there is none
	hosts   string // the file that sends pulls to the laboratory's registry
	cluster *Cluster
	pki     *pki // nil: standalone

	init     *exec.Cmd
	runtime  *process
	upstream *process
	kubelet  *process
	proxy    *process
	before   world.World
}

// Root is the path in the laboratory of a path in the node, below /etc, /run, /opt, /var/lib or
// /var/log. In /etc it has only what differs from the machine's.
func (n *Node) Root(path string) string {
	for prefix, part := range map[string]string{
		"/etc": partEtc, "/run": partRun, "/opt": partOpt, "/var/lib": partLib, "/var/log": partLog,
	} {
		if rest, err := filepath.Rel(prefix, path); err == nil && filepath.IsLocal(rest) {
			return filepath.Join(n.Dir, part, rest)
		}
	}
	return path
}

// endpoint is where kubelet finds the runtime.
func (n *Node) endpoint() string {
	if n.kind == Upstream {
		return upstreamSocket
	}
	return sandflowSocket
}

func (n *Node) peers() []*Node {
	if n.cluster == nil {
		return nil
	}
	var out []*Node
	for _, other := range n.cluster.Nodes {
		if other != n {
			out = append(out, other)
		}
	}
	return out
}

// Command is a command in the node, with the build directory's programs in its PATH. Where its
// context ends, so does the program in the node.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"-t", strconv.Itoa(n.init.Process.Pid), "-m", "-n", "-p", "-u", "-i", "--", name}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Cancel = func() error { return signalTo(cmd.Process, syscall.SIGKILL) }
	return cmd
}

// program is one that runs in the node for long; it logs to a file named after it.
func (n *Node) program(name string, args ...string) *process {
	return &process{
		name: name + " of " + n.Name, log: filepath.Join(n.Dir, name+".txt"),
		make: func(ctx context.Context) *exec.Cmd { return n.Command(ctx, n.lab.Bin(name), args...) },
	}
}

// prepare makes what a node has before it is switched on for the first time.
func (n *Node) prepare() error {
	for _, part := range []string{partRun, partLib, partLog, partOpt + "/cni/bin", partEtc, partWork} {
		if err := os.MkdirAll(filepath.Join(n.Dir, part), 0o755); err != nil {
			return err
		}
	}
	hosts, err := os.ReadFile(n.hosts)
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(n.Root(manifestDir), 0o755),
		writeFile(n.Root("/etc/sandflow/config.toml"), n.sandflowConfig()),
		writeFile(n.Root("/etc/containerd/config.toml"), n.upstreamConfig()),
		writeFile(n.Root("/etc/containerd/certs.d/_default/hosts.toml"), string(hosts)),
		// Kubernetes' tests run a registry in a pod of the node's network.
		writeFile(n.Root("/etc/containerd/certs.d/localhost:5000/hosts.toml"), "server = \"http://localhost:5000\"\n"),
		writeObject(n.Root("/etc/cni/net.d/10-pods.conflist"), n.conflist()),
		writeObject(n.Root("/etc/kubernetes/kubelet.json"), n.kubeletConfig()),
		writeObject(filepath.Join(n.Dir, "boot.json"), object{
			"Hostname": n.Name, "Dir": n.Dir, "Lab": n.lab.Dir, "CNI": filepath.Join(n.lab.Build, "cni"),
		}),
	)
}

// switchOn boots the machine; nothing runs on it yet.
func (n *Node) switchOn(ctx context.Context) error {
	run := filepath.Join(n.Dir, partRun)
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("could not mount %s: %w", run, err)
	}
	if err := os.Mkdir(filepath.Join(run, filepath.Base(n.lab.Dir)), 0o711); err != nil {
		return err
	}
	if err := makeCgroups(n.CgroupRoot); err != nil {
		return err
	}
	n.init = exec.CommandContext(context.WithoutCancel(ctx), n.lab.Bin("kubelab"), "init", filepath.Join(n.Dir, "boot.json"))
	n.init.Stderr = os.Stderr
	n.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	out, err := n.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.init.Start(); err != nil {
		return fmt.Errorf("could not boot %s: %w", n.Name, err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("its process 1 ended")
		}
		return errors.Join(fmt.Errorf("could not boot %s: %w", n.Name, err), n.switchOff())
	}
	return n.plug()
}

// switchOff cuts the power: all processes end at once, /run and the network are gone. What is
// on disk stays.
func (n *Node) switchOff() error {
	if n.init == nil {
		return nil
	}
	var errs []error
	if err := n.init.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, err)
	}
	// The kernel has process 1 end only after all others of its namespace.
	var exit *exec.ExitError
	if err := n.init.Wait(); err != nil && !errors.As(err, &exit) {
		errs = append(errs, err)
	}
	n.init = nil
	for _, p := range []*process{n.kubelet, n.proxy, n.runtime, n.upstream} {
		p.gone()
	}
	errs = append(errs, n.unplug(), unix.Unmount(filepath.Join(n.Dir, partRun), 0), harness.RemoveCgroups(n.CgroupRoot))
	return errors.Join(errs...)
}
