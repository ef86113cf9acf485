// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash kills sandflowd, and what works for it, at every place where that makes a
// difference, makes every action fail in every way, and checks by the world count that
// nothing is lost and nothing is left. It needs a laboratory: "make crash".
package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
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

const (
	// patience is how long anything may take that should be quick.
	patience = 20 * time.Second
	// rpcTimeout is more than any call needs that is not made to hang.
	rpcTimeout = 30 * time.Second
	// Waiting for the next try of what is stuck, and the bound of one undo.
	minBackoff, maxBackoff, undoTimeout = 200 * time.Millisecond, time.Second, 6 * time.Second
)

var nodes atomic.Int64

// node is a daemon in the laboratory that can be made to fail, with what a test needs around it.
type node struct {
	t       *testing.T
	lab     *harness.Lab
	daemon  *harness.Daemon
	client  *harness.Client
	metrics string // address
	// faults is the file with faults of the daemon; control that of the failing CNI plugin
	// and of the OCI runtime that can be killed.
	faults, control string
	before          world.World
	without         []string // kinds that are not compared
	lives           int
	known           []action // once asked for
}

const settings = `[runtime.handlers.boxed]
sandbox = "container"
type = %q
options = {BinaryName = %q, Root = %q}
[runtime.handlers.mortal]
binary = %q
[metrics]
address = %q
[cleanup]
min_backoff = %q
max_backoff = %q
undo_timeout = %q
# Snapshots' directories go soon, and not when the last collection has been long enough ago.
[containerd.plugins."io.containerd.gc.v1.scheduler"]
pause_threshold = 0.5
startup_delay = "10ms"
%s`

// newNode starts a daemon, pulls the images and runs pods, so that what the first pod makes
// for good is there.
// prepare, if there, is called before the daemon starts for the first time.
func newNode(t *testing.T, extra string, prepare ...func(*harness.Daemon)) *node {
	t.Helper()
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make crash\"")
	}
	number := nodes.Add(1)
	name := fmt.Sprintf("c%d", number)
	n := &node{t: t, lab: l, metrics: fmt.Sprintf("127.0.0.1:%d", 9200+number)}
	n.faults = filepath.Join(l.Dir, name+".faults")
	n.control = filepath.Join(l.Dir, name+".control")
	conf := filepath.Join(l.Dir, name+".net.d")
	must(t, l.WriteNetwork(conf, fmt.Sprintf(`{"type": "failcni", "control": %q}`, n.control)))
	registry, err := images.Serve(t.Context(), l.Images())
	must(t, err)
	t.Cleanup(func() { _ = registry.Close() })
	must(t, registry.WriteHosts(l.CertsDir()))
	d, err := l.Sandflow(harness.Options{
		Name: name, ConfDir: conf, Program: l.Bin("sandflowd-faults"),
		BinDirs: []string{n.mortalPlugins(name), filepath.Join(l.Build, "cni"), filepath.Join(l.Build, "bin")},
		Extra:   fmt.Sprintf(settings, l.Bin("containerd-shim-runc-v2"), l.Bin("runc"), "/run/boxed", n.mortalRuntime(name), n.metrics, minBackoff, maxBackoff, undoTimeout, extra),
	})
	must(t, err)
	d.Env = []string{"SANDFLOW_FAULTS=" + n.faults}
	n.daemon = d
	for _, p := range prepare {
		p(d)
	}
	must(t, d.Start(t.Context()))
	n.client, err = harness.Dial(d.Socket)
	must(t, err)
	t.Cleanup(n.end)
	for _, image := range []string{images.Busybox, images.Pause} {
		_, err := n.client.PullImage(t.Context(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
		must(t, err)
	}
	n.healthy()
	for _, handler := range []string{"", "boxed", "mortal"} {
		must(t, n.life(handler).from(0))
	}
	n.before = n.count()
	return n
}

// end stops the daemon and keeps its log if the test failed.
func (n *node) end() {
	n.fault()
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

// try runs one place of a matrix; after one that failed the node is made whole for the next.
func (n *node) try(name string, f func()) bool {
	outer := n.t
	defer func() { n.t = outer }()
	ok := outer.Run(name, func(t *testing.T) {
		n.t = t
		start := n.logSize()
		defer func() {
			if t.Failed() {
				t.Logf("the daemon's log of it:\n%s", n.logFrom(start))
			}
		}()
		f()
	})
	n.t = outer
	if !ok {
		n.reset()
	}
	return ok
}

func (n *node) logSize() int64 {
	st, err := os.Stat(n.daemon.Log)
	if err != nil {
		return 0
	}
	return st.Size()
}

// logFrom gives the end of what the log says since then, without what is told of containerd and
// of actions that succeed.
func (n *node) logFrom(start int64) string {
	raw, err := os.ReadFile(n.daemon.Log)
	if err != nil || int64(len(raw)) < start {
		return ""
	}
	const most = 8000
	text := ""
	for line := range strings.Lines(string(raw[start:])) {
		if !strings.Contains(line, `logger="containerd"`) && !strings.Contains(line, "Action done") {
			text += line
		}
	}
	return text[max(0, len(text)-most):]
}

// reset takes away whatever a failed place has left, as far as that goes.
func (n *node) reset() {
	n.fault()
	_ = os.Remove(n.control)
	_ = n.daemon.Kill()
	must(n.t, n.daemon.Start(n.t.Context()))
	n.killLeftovers()
	ctx, cancel := context.WithTimeout(n.t.Context(), rpcTimeout)
	defer cancel()
	if r, err := n.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{}); err == nil {
		for _, p := range r.GetItems() {
			_, _ = n.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.GetId()})
			_, _ = n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
	}
	_, _ = n.sandflow("sweep")
	n.before = n.count()
}

func (n *node) count() world.World {
	n.t.Helper()
	w, err := world.Count(n.t.Context(), n.where())
	must(n.t, err)
	return w
}

// where leaves out the daemon's log sockets and such that this package's own tools make.
func (n *node) where() world.Where {
	w := n.daemon.World()
	w.IgnoreProcesses = append(w.IgnoreProcesses, "crash.test", "sandflow")
	w.Without = n.without
	return w
}

// left tells what is on the node that was not before the first pod, and the other way round,
// when that has stayed so for a while.
func (n *node) left(limit time.Duration) string {
	n.t.Helper()
	for _, kind := range n.without {
		delete(n.before, kind)
	}
	diff, err := world.Settle(n.t.Context(), n.where(), n.before, limit)
	must(n.t, err)
	return diff
}

// collect lets containerd collect its garbage: what is removed while it does so by itself it
// forgets until something else is removed.
func (n *node) collect() {
	n.t.Helper()
	c, err := client.New(n.daemon.Containerd, client.WithDefaultNamespace("k8s.io"))
	must(n.t, err)
	defer func() { must(n.t, c.Close()) }()
	ls := c.LeasesService()
	ctx := namespaces.WithNamespace(n.t.Context(), "k8s.io")
	l, err := ls.Create(ctx, leases.WithRandomID())
	must(n.t, err)
	must(n.t, ls.Delete(ctx, l, leases.SynchronousDelete))
}

// same checks that the node is as it was before the first pod.
func (n *node) same() {
	n.t.Helper()
	if diff := n.left(patience); diff != "" {
		n.t.Errorf("left on the node:\n%s", diff)
	}
}

// sandflow runs the operator's command and gives its exit code and output.
func (n *node) sandflow(args ...string) (int, string) {
	n.t.Helper()
	cmd := exec.CommandContext(n.t.Context(), n.lab.Bin("sandflow"), append(args, "--admin-socket", filepath.Join(n.daemon.State, "admin.sock"))...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	}
	must(n.t, err)
	return 0, string(out)
}

// healthy checks that the doctor finds nothing, soon.
func (n *node) healthy() {
	n.t.Helper()
	code, out := 1, ""
	for deadline := time.Now().Add(patience / 2); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if code, out = n.sandflow("doctor"); code == 0 {
			return
		}
	}
	n.t.Errorf("sandflow doctor ends with %d:\n%s", code, out)
}

// flow is a flow as "sandflow flows" tells of it.
type flow struct {
	Workflow, Name string
	Steps          []struct{ Actions []string }
	InFlight       int `json:"in_flight"`
	Stuck          int
}

// stuckOne is a subject that is stuck, as it tells.
type stuckOne struct {
	Workflow, ID, Error string
	Attempts            int
}

func (n *node) flows() (flows []flow, stuck []stuckOne) {
	n.t.Helper()
	code, out := n.sandflow("flows", "-o", "json")
	var r struct {
		Flows []flow
		Stuck []stuckOne
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		n.t.Fatalf("sandflow flows ends with %d (%v): %s", code, err, out)
	}
	return r.Flows, r.Stuck
}

// quiet waits until the daemon makes no move of its own any more: it takes down what ends.
func (n *node) quiet() {
	n.t.Helper()
	still := 0
	for deadline := time.Now().Add(patience); still < 3 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		still++
		all, _ := n.flows()
		for _, f := range all {
			if f.InFlight > 0 {
				still = 0
			}
		}
	}
}

// action is an action of the daemon's flows: in which call it is done and undone, and which
// handler's pods it is for.
type action struct {
	name, handler string
	up, down      int
	passed        bool // by some pod of this package
}

// actions are all that the daemon has in its flows.
func (n *node) actions() []action {
	n.t.Helper()
	if n.known != nil {
		return n.known
	}
	up := map[string]int{"sandbox.create": 0, "container.create": 1, "container.start": 2}
	down := map[int]int{0: 5, 1: 4, 2: 3}
	var passed [2][]string
	for i, handler := range []string{"", "boxed"} {
		passed[i] = n.traced(func() { must(n.t, n.life(handler).from(0)) })
	}
	all, _ := n.flows()
	var out []action
	for _, f := range all {
		stage, ok := up[f.Workflow+"."+f.Name]
		for _, s := range f.Steps {
			for _, name := range s.Actions {
				if !ok {
					continue // down
				}
				a := action{name: name, up: stage, down: down[stage], passed: true}
				point := f.Workflow + "." + f.Name + "/do:" + name
				switch {
				case slices.Contains(passed[0], point):
				case slices.Contains(passed[1], point):
					a.handler = "boxed"
				default:
					a.passed = false
				}
				out = append(out, a)
			}
		}
	}
	n.known = out
	return out
}

// fault sets the faults; none clears them.
func (n *node) fault(faults ...string) {
	n.t.Helper()
	must(n.t, os.WriteFile(n.faults+".new", []byte(strings.Join(faults, "\n")), 0o644))
	must(n.t, os.Rename(n.faults+".new", n.faults))
	_ = os.Remove(n.faults + ".log")
}

// used says whether a fault has been injected since they were set.
func (n *node) used(fault string) bool { return n.uses(fault) > 0 }

// uses says how often.
func (n *node) uses(fault string) int {
	raw, err := os.ReadFile(n.faults + ".log")
	if err != nil {
		return 0
	}
	times := 0
	for _, one := range strings.Fields(string(raw)) {
		if one == fault {
			times++
		}
	}
	return times
}

// traced runs f and gives the points that were passed meanwhile, each once, in order.
func (n *node) traced(f func()) []string {
	n.t.Helper()
	path := n.faults + ".trace"
	must(n.t, os.WriteFile(path, nil, 0o644))
	f()
	raw, err := os.ReadFile(path)
	must(n.t, errors.Join(err, os.Remove(path)))
	var out []string
	for _, point := range strings.Fields(string(raw)) {
		if !slices.Contains(out, point) {
			out = append(out, point)
		}
	}
	return out
}

// alive says whether the daemon's process is there.
func (n *node) alive() bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(n.daemon.PID()), "exe"))
	return err == nil
}

// dies waits until the daemon is dead, or call has returned and the daemon has lived on for a
// while. It says which.
func (n *node) dies(call func()) bool {
	n.t.Helper()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		call()
	}()
	after := time.Time{}
	for n.alive() {
		select {
		case <-returned:
			if after.IsZero() {
				after = time.Now()
			}
			if time.Since(after) > time.Second {
				return false
			}
		default:
		}
		time.Sleep(2 * time.Millisecond)
	}
	<-returned
	return true
}

// podPrograms are what runs in this package's pods, and for them.
var podPrograms = []string{"containerd-shim-sandflow-v1", "containerd-shim-runc-v2", "sandflow-init", "sleep", "pause", "runc"}

// killLeftovers kills all processes of pods, and says how many there were; in a laboratory there
// are no others of their names.
func (n *node) killLeftovers() int {
	n.t.Helper()
	found := 0
	for _, name := range podPrograms {
		pids, err := pidsOf(name)
		must(n.t, err)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		found += len(pids)
	}
	return found
}

// killShims kills the shims.
func (n *node) killShims() {
	n.t.Helper()
	pids, err := pidsOf(podPrograms[0])
	must(n.t, err)
	if len(pids) == 0 {
		n.t.Error("there is no shim")
	}
	for _, pid := range pids {
		must(n.t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// pidsOf are the processes of a program.
func pidsOf(program string) ([]int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, path := range found {
		raw, err := os.ReadFile(path)
		first, _, _ := strings.Cut(string(raw), "\x00")
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && perr == nil && filepath.Base(first) == program {
			out = append(out, pid)
		}
	}
	return out, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) waitFor(what string, ready func() bool) bool {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Errorf("waited %s in vain for %s", patience, what)
			return false
		}
	}
	return true
}
