// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster makes a Kubernetes cluster in a laboratory: etcd, API server, controller
// manager and scheduler, and nodes that have namespaces, cgroups and directories of their own,
// each with a CRI runtime, kubelet and kube-proxy. Its programs come from "hack/tools.sh node
// cluster".
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// Runtime is what the nodes of a cluster run pods with.
type Runtime string

// The runtimes.
const (
	// Embedded is sandflow with containerd inside; the default.
	Embedded Runtime = "embedded"
	// Attached is sandflow on an ordinary containerd.
	Attached Runtime = "attached"
	// Upstream is an ordinary containerd with its own CRI, to compare with.
	Upstream Runtime = "containerd"
)

// Options are what clusters differ in.
type Options struct {
	// Nodes is how many nodes there are; default 1.
	Nodes int
	// Runtime is the nodes' runtime; default Embedded.
	Runtime Runtime
	// FeatureGates are Kubernetes' own, for all its programs.
	FeatureGates map[string]bool
	// Images are directories with further images for the cluster's registry, as package images
	// makes them.
	Images []string
	// Plain leaves kubelet's settings as they are by default, where the laboratory allows it;
	// otherwise it is brisk.
	Plain bool
	// Out gets a line about each thing that happens; default none.
	Out io.Writer
}

func (o Options) withDefaults() Options {
	o.Nodes = max(1, o.Nodes)
	if o.Runtime == "" {
		o.Runtime = Embedded
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	gates := maps.Clone(o.FeatureGates)
	if _, given := gates[statsFromCRI]; !given && !o.Plain && o.Runtime != Upstream {
		if gates == nil {
			gates = map[string]bool{}
		}
		gates[statsFromCRI] = true
	}
	o.FeatureGates = gates
	return o
}

// statsFromCRI has kubelet ask the runtime for what it serves as cAdvisor's metrics. Without it
// cAdvisor looks for itself, and knows pods only of runtimes that it has code for.
const statsFromCRI = "PodAndContainerStatsFromCRI"

// Cluster is a running cluster.
type Cluster struct {
	// Kubeconfig is the file of a user who may do everything.
	Kubeconfig string
	// Nodes are its nodes: node1, node2, ...
	Nodes []*Node
	// Dir holds its files: logs, certificates, the nodes' directories.
	Dir string

	lab      *harness.Lab
	options  Options
	pki      *pki
	control  *control
	registry *images.Registry
	sysctls  sysctls
	bridge   bool        // is there
	ready    bool        // all of it came up
	before   world.World // of the laboratory
}

// Start starts a cluster in the laboratory that the process is in, and returns when its nodes
// are ready and pods can be made. Its images are those of package images, and agnhost.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	return start(ctx, o, (*Cluster).openControl)
}

// Standalone starts a single node without a control plane: kubelet runs static pods only, from
// manifests in /etc/kubernetes/manifests of the node, and lets everybody in.
func Standalone(ctx context.Context, o Options) (*Cluster, error) {
	o.Nodes = 1
	return start(ctx, o, func(*Cluster, context.Context) error { return nil })
}

func start(ctx context.Context, o Options, open func(*Cluster, context.Context) error) (*Cluster, error) {
	lab, ok := harness.Here()
	if !ok {
		return nil, errors.New("a cluster needs a laboratory: run it with \"lab run\"")
	}
	c := &Cluster{options: o.withDefaults(), lab: lab, Dir: filepath.Join(lab.Dir, "kube")}
	var err error
	if c.before, err = world.Count(ctx, c.where()); err != nil {
		return nil, err
	}
	if c.sysctls, err = rememberSysctls(); err != nil {
		return nil, err
	}
	begin := time.Now()
	for _, step := range []func(*Cluster, context.Context) error{open, (*Cluster).foundations, (*Cluster).startNodes} {
		if err := step(c, ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("could not start the cluster: %w", err), c.Close(ctx))
		}
	}
	c.ready = true
	fmt.Fprintf(c.options.Out, "%d node(s) with %s ready after %d ms\n", len(c.Nodes), c.options.Runtime, time.Since(begin).Milliseconds())
	return c, nil
}

// openControl starts the control plane.
func (c *Cluster) openControl(ctx context.Context) error {
	var err error
	if c.pki, err = newPKI(filepath.Join(c.Dir, "pki")); err != nil {
		return err
	}
	c.Kubeconfig, err = c.pki.kubeconfig("admin", holder{user: "admin", groups: []string{"system:masters"}})
	if err != nil {
		return err
	}
	if err := c.openBridge(); err != nil {
		return err
	}
	c.control = &control{c: c}
	return c.control.start(ctx)
}

// openBridge makes the network of the nodes, once.
func (c *Cluster) openBridge() error {
	if c.bridge {
		return nil
	}
	c.bridge = true
	return openBridge()
}

// foundations are the network, the image registry, and what nodes are made of.
func (c *Cluster) foundations(ctx context.Context) error {
	if err := c.openBridge(); err != nil {
		return err
	}
	var err error
	if c.registry, err = images.ServeAt(ctx, c.lab.Images(), labAddress+":0"); err != nil {
		return err
	}
	if err := c.registry.AddAgnhost(ctx, c.lab.Bin("agnhost")); err != nil {
		return err
	}
	for _, dir := range c.options.Images {
		if err := c.registry.Add(ctx, dir); err != nil {
			return err
		}
	}
	certs := filepath.Join(c.Dir, "certs.d")
	if err := c.registry.WriteHosts(certs); err != nil {
		return err
	}
	crun, err := exec.LookPath("crun")
	if err != nil {
		crun = ""
	}
	for i := range c.options.Nodes {
		number := i + 1
		n := &Node{
			Name: fmt.Sprintf("node%d", number), IP: fmt.Sprintf(nodeAddresses, 10+number),
			PodCIDR: fmt.Sprintf(podRanges, number), CgroupRoot: fmt.Sprintf("%s/node%d", c.lab.CgroupParent, number),
			lab: c.lab, kind: c.options.Runtime, gates: c.options.FeatureGates, crun: crun,
			hosts: filepath.Join(certs, "_default", "hosts.toml"), cluster: c, pki: c.pki,
		}
		n.Dir = filepath.Join(c.Dir, n.Name)
		n.Socket, n.AdminSocket = n.Root(n.endpoint()), n.Root("/run/sandflow/admin.sock")
		c.Nodes = append(c.Nodes, n)
	}
	return nil
}

// Bin is the path of a program in the build directory.
func (c *Cluster) Bin(name string) string { return c.lab.Bin(name) }

// Kubectl is kubectl with the rights of the administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.lab.Bin("kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
}

// run runs kubectl; what it says goes into the error.
func (c *Cluster) run(ctx context.Context, args ...string) error {
	out, err := c.Kubectl(ctx, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
