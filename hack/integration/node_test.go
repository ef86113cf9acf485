// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests sandflowd as a whole, from the outside: over CRI, by what it
// leaves on the node, and by killing it. It needs a laboratory: "make integration".
package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

// patience is how long anything may take that should be quick.
const patience = 20 * time.Second

var names atomic.Int64

// node is a daemon in the laboratory with what a test needs around it.
type node struct {
	t      *testing.T
	lab    *harness.Lab
	daemon *harness.Daemon
	client *harness.Client
	// registry is where all images are pulled from.
	registry *images.Registry
	// faults is the file with faults of actions, control that of the failing CNI plugin,
	// calls the log of that plugin.
	faults, control, calls string
	before                 world.World
}

// options vary a node.
type options struct {
	harness.Options
	// bare leaves out the warm-up and the images.
	bare bool
}

// lab returns the laboratory, or skips the test.
func lab(t *testing.T) *harness.Lab {
	t.Helper()
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make integration\"")
	}
	return l
}

// newNode starts a daemon of the kind that can be made to fail, pulls the images, and runs
// one pod, so that what the first pod makes for good is there (the bridge, base rules of
// iptables). The daemon ends with the test, and must then have left nothing.
func newNode(t *testing.T, o options) *node {
	t.Helper()
	l := lab(t)
	name := fmt.Sprintf("n%d", names.Add(1))
	n := &node{t: t, lab: l}
	n.faults = filepath.Join(l.Dir, name+".faults")
	n.control = filepath.Join(l.Dir, name+".cni")
	n.calls = filepath.Join(l.Dir, name+".cni.log")
	if o.ConfDir == "" {
		o.ConfDir = filepath.Join(l.Dir, name+".net.d")
		last := fmt.Sprintf(`{"type": "failcni", "control": %q, "log": %q}`, n.control, n.calls)
		must(t, l.WriteNetwork(o.ConfDir, last))
	}
	o.Name = name
	if o.Program == "" {
		o.Program = l.Bin("sandflowd-faults")
	}
	n.registry = registry(t, l)
	must(t, n.registry.WriteHosts(l.CertsDir()))
	d, err := l.Sandflow(o.Options)
	must(t, err)
	d.Env = []string{"SANDFLOW_FAULTS=" + n.faults}
	n.daemon = d
	must(t, d.Start(t.Context()))
	n.client, err = harness.Dial(d.Socket)
	must(t, err)
	t.Cleanup(n.end)
	if o.bare {
		return n
	}
	n.pull(images.Busybox)
	n.warmUp()
	n.collect()
	n.before = n.count()
	return n
}

// registry serves the images; one for each test, on a port of its own.
func registry(t *testing.T, l *harness.Lab) *images.Registry {
	t.Helper()
	r, err := images.Serve(t.Context(), l.Images())
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func (n *node) warmUp() {
	n.t.Helper()
	waitFor(n.t, "the network to be ready", func() bool {
		r, err := n.client.Status(n.t.Context(), &cri.StatusRequest{})
		must(n.t, err)
		for _, c := range r.GetStatus().GetConditions() {
			if c.GetType() == cri.NetworkReady && c.GetStatus() {
				return true
			}
		}
		return false
	})
	cfg := n.pod("warm-up")
	cfg.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: 18080}}
	id := n.run(cfg)
	n.started(id, cfg, n.ctr("c", "sleep", "1000"))
	n.remove(id)
}

// collect has containerd collect its garbage now: the directories of removed snapshots go
// some time later otherwise.
func (n *node) collect() {
	n.t.Helper()
	c, err := client.New(n.daemon.Containerd)
	must(n.t, err)
	ctx := namespaces.WithNamespace(n.t.Context(), "k8s.io")
	l, err := c.LeasesService().Create(ctx, leases.WithRandomID())
	must(n.t, err)
	must(n.t, c.LeasesService().Delete(ctx, l, leases.SynchronousDelete))
	must(n.t, c.Close())
}

// end stops the daemon and shows its log if the test failed.
func (n *node) end() {
	_ = n.client.Close()
	if err := n.daemon.Stop(); err != nil {
		n.t.Errorf("the daemon did not stop in order: %v", err)
	}
	if n.t.Failed() {
		reports := filepath.Join(n.lab.Build, "reports")
		_ = os.MkdirAll(reports, 0o755)
		raw, _ := os.ReadFile(n.daemon.Log)
		path := filepath.Join(reports, strings.ReplaceAll(n.t.Name(), "/", "-")+".log")
		_ = os.WriteFile(path, raw, 0o644)
		n.t.Logf("the daemon's log is in %s", path)
	}
}

func (n *node) restart() {
	n.t.Helper()
	must(n.t, n.daemon.Stop())
	must(n.t, n.daemon.Start(n.t.Context()))
}

func (n *node) count() world.World {
	n.t.Helper()
	w, err := world.Count(n.t.Context(), n.daemon.World())
	must(n.t, err)
	return w
}

// same checks that the node is as it was before the first pod, but for some kinds of things.
func (n *node) same(but ...string) {
	n.t.Helper()
	where := n.daemon.World()
	where.Without = but
	for _, kind := range but {
		delete(n.before, kind)
	}
	diff, err := world.Settle(n.t.Context(), where, n.before, patience)
	must(n.t, err)
	if diff != "" {
		n.t.Errorf("left on the node:\n%s", diff)
	}
}

// fault sets the faults of actions, all at once; none clears them.
func (n *node) fault(faults ...string) {
	n.t.Helper()
	must(n.t, os.WriteFile(n.faults+".new", []byte(strings.Join(faults, "\n")), 0o644))
	must(n.t, os.Rename(n.faults+".new", n.faults))
}

// quiet waits until no flow is in flight: one whose caller has gone still is, and takes faults
// that are meant for the next.
func (n *node) quiet() {
	n.t.Helper()
	waitFor(n.t, "the flows in flight to end", func() bool {
		out, err := n.sandflow("flows", "-o", "json")
		must(n.t, err)
		var r struct {
			Flows []struct {
				InFlight int `json:"in_flight"`
			}
		}
		must(n.t, json.Unmarshal([]byte(out), &r))
		for _, f := range r.Flows {
			if f.InFlight > 0 {
				return false
			}
		}
		return true
	})
}

// reached waits until a fault has been injected, and forgets that it was.
func (n *node) reached(fault string) {
	n.t.Helper()
	waitFor(n.t, "fault "+fault, func() bool {
		raw, err := os.ReadFile(n.faults + ".log")
		return err == nil && strings.Contains(string(raw), fault+"\n")
	})
	must(n.t, os.Remove(n.faults+".log"))
}

// sandflow runs the operator's command.
func (n *node) sandflow(args ...string) (string, error) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), n.lab.Bin("sandflow"), append(args, "--admin-socket", filepath.Join(n.daemon.State, "admin.sock"))...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pod makes a pod's configuration.
func (n *node) pod(name string) *cri.PodSandboxConfig {
	logs := filepath.Join(n.lab.Dir, "logs", filepath.Base(n.daemon.State), name)
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: name + "-uid", Namespace: "default"},
		Hostname:     name,
		LogDirectory: logs,
		Labels:       map[string]string{"test": n.t.Name()},
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: perContainer()}},
	}
}

// perContainer are kubelet's defaults: network and IPC of the pod, processes of the container.
func perContainer() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

// ctr makes a container's configuration.
func (n *node) ctr(name string, command ...string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: images.Busybox, UserSpecifiedImage: images.Busybox},
		Command:  command,
		LogPath:  name + ".log",
		Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: perContainer()}},
	}
}

func (n *node) pull(image string) string {
	n.t.Helper()
	r, err := n.client.PullImage(n.t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	must(n.t, err)
	return r.GetImageRef()
}

func (n *node) tryRun(ctx context.Context, cfg *cri.PodSandboxConfig, handler string) (string, error) {
	r, err := n.client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
	return r.GetPodSandboxId(), err
}

func (n *node) run(cfg *cri.PodSandboxConfig) string {
	n.t.Helper()
	id, err := n.tryRun(n.t.Context(), cfg, "")
	must(n.t, err)
	return id
}

func (n *node) tryCreate(ctx context.Context, pod string, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) (string, error) {
	r, err := n.client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: cfg, Config: c})
	return r.GetContainerId(), err
}

func (n *node) created(pod string, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) string {
	n.t.Helper()
	id, err := n.tryCreate(n.t.Context(), pod, cfg, c)
	must(n.t, err)
	return id
}

func (n *node) tryStart(ctx context.Context, id string) error {
	_, err := n.client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	return err
}

func (n *node) started(pod string, cfg *cri.PodSandboxConfig, c *cri.ContainerConfig) string {
	n.t.Helper()
	id := n.created(pod, cfg, c)
	must(n.t, n.tryStart(n.t.Context(), id))
	// runc's first process becomes the container's a moment after the start was answered.
	waitFor(n.t, "the container's program", func() bool {
		return !slices.ContainsFunc(n.pidsWith("runc\x00init"), func(pid int) bool {
			raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			return err == nil && strings.Contains(string(raw), id)
		})
	})
	return id
}

// remove stops and removes a pod.
func (n *node) remove(pod string) {
	n.t.Helper()
	_, err := n.client.StopPodSandbox(n.t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: pod})
	must(n.t, err)
	_, err = n.client.RemovePodSandbox(n.t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: pod})
	must(n.t, err)
}

func (n *node) pods() []*cri.PodSandbox {
	n.t.Helper()
	r, err := n.client.ListPodSandbox(n.t.Context(), &cri.ListPodSandboxRequest{})
	must(n.t, err)
	return r.GetItems()
}

func (n *node) containers() []*cri.Container {
	n.t.Helper()
	r, err := n.client.ListContainers(n.t.Context(), &cri.ListContainersRequest{})
	must(n.t, err)
	return r.GetContainers()
}

func (n *node) status(ctr string) *cri.ContainerStatus {
	n.t.Helper()
	r, err := n.client.ContainerStatus(n.t.Context(), &cri.ContainerStatusRequest{ContainerId: ctr})
	must(n.t, err)
	return r.GetStatus()
}

// exited waits for the end of a container.
func (n *node) exited(ctr string) *cri.ContainerStatus {
	n.t.Helper()
	waitFor(n.t, "the container's exit", func() bool { return n.status(ctr).GetState() == cri.ContainerState_CONTAINER_EXITED })
	return n.status(ctr)
}

func (n *node) exec(ctr string, command ...string) string {
	n.t.Helper()
	r, err := n.client.ExecSync(n.t.Context(), &cri.ExecSyncRequest{ContainerId: ctr, Cmd: command, Timeout: 10})
	must(n.t, err)
	if r.GetExitCode() != 0 {
		n.t.Fatalf("exec %v: exit code %d, %s", command, r.GetExitCode(), r.GetStderr())
	}
	return string(r.GetStdout())
}

// cniCalls are the calls of the plugin failcni so far, "VERB CONTAINERID NETNS".
func (n *node) cniCalls() []string {
	n.t.Helper()
	raw, err := os.ReadFile(n.calls)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain for %s", patience, what)
		}
	}
}
