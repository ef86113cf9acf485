// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets many clients live with a daemon that is killed, and made to fail, all the
// time. What they do and what befalls them is a story that follows from a seed; what each of
// them is told is compared with a simple model of what must be true, and what is left on the node
// in the end with what was there before. It needs a laboratory: "make chaos LIVES=10000 SEED=1".
package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/world"
)

const (
	// patience is how long anything may take that should be quick.
	patience = 30 * time.Second
	// rpcTimeout is more than any call needs that is not made to hang.
	rpcTimeout = time.Minute
)

// settings let what is stuck be tried again soon, and snapshots' directories go soon.
const settings = `[runtime.handlers.boxed]
sandbox = "container"
type = %q
options = {BinaryName = %q, Root = "/run/boxed"}
[runtime.handlers.mortal]
binary = %q
[cleanup]
min_backoff = "100ms"
max_backoff = "500ms"
undo_timeout = "20s"
[containerd.plugins."io.containerd.gc.v1.scheduler"]
pause_threshold = 0.5
startup_delay = "10ms"
`

// node is a daemon that is started again whenever it dies, and what all lives share.
type node struct {
	lab     *harness.Lab
	reports string // the directory of what is kept of a run
	daemon  *harness.Daemon
	client  *harness.Client
	before  world.World
	faults  *faults
	tally   *tally
	past    *past

	// killing is held by the one who ends the daemon.
	killing sync.Mutex

	mu      sync.Mutex
	up      chan struct{} // closed while the daemon serves
	deaths  int           // begun ones
	ordered bool          // the next death is somebody's will
	broken  error         // why there can be no daemon any more
	closing chan struct{}
	watched sync.WaitGroup
	ips     map[string]string // pod by address
}

// start makes the node, pulls the images, and runs pods of all kinds, so that what the first pod
// makes for good is there.
func start(ctx context.Context, l *harness.Lab, name, level string) (*node, error) {
	n := &node{
		lab: l, reports: filepath.Join(l.Build, "reports"), tally: newTally(), past: &past{}, up: make(chan struct{}), closing: make(chan struct{}), ips: map[string]string{},
	}
	n.faults = &faults{path: filepath.Join(l.Dir, name+".faults"), dir: filepath.Join(l.Dir, name+".deaths"), of: map[string][]*fault{}}
	for _, dir := range []string{n.faults.dir, n.reports} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	programs, runc, err := n.faults.mortals(l, name)
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(l.Dir, name+".net.d")
	if err := l.WriteNetwork(conf); err != nil {
		return nil, err
	}
	n.daemon, err = l.Sandflow(harness.Options{
		Name: name, ConfDir: conf, Program: l.Bin("sandflowd-faults"), LogLevel: level,
		BinDirs: []string{programs, filepath.Join(l.Build, "cni"), filepath.Join(l.Build, "bin")},
		Extra:   fmt.Sprintf(settings, l.Bin("containerd-shim-runc-v2"), l.Bin("runc"), runc),
	})
	if err != nil {
		return nil, err
	}
	n.daemon.Env = []string{"SANDFLOW_FAULTS=" + n.faults.path}
	if err := n.daemon.Start(ctx); err != nil {
		return nil, err
	}
	close(n.up)
	n.watched.Go(func() { n.watch(ctx) })
	return n, n.settleIn(ctx)
}

// settleIn makes what is there for good.
func (n *node) settleIn(ctx context.Context) error {
	registry, err := images.Serve(ctx, n.lab.Images())
	if err != nil {
		return err
	}
	defer func() { _ = registry.Close() }()
	if err := registry.WriteHosts(n.lab.CertsDir()); err != nil {
		return err
	}
	if n.client, err = harness.Dial(n.daemon.Socket, grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		return err
	}
	for _, image := range []string{images.Busybox, images.Pause} {
		if _, err := n.client.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
			return err
		}
	}
	for i, handler := range []string{"", story.Boxed, story.Mortal} {
		if err := newLife(n, plain(i, handler)).play(ctx); err != nil {
			return err
		}
	}
	n.tally = newTally()
	n.before, err = world.Count(ctx, n.where())
	return err
}

// plain is a life in which nothing special happens, beside those of the stories.
func plain(i int, handler string) story.Life {
	return story.Life{
		Index: 900000 + i, Handler: handler, Port: 19999, Containers: []story.Container{{Exits: story.Never, Volume: true}},
		Steps: []story.Step{
			{Op: story.RunPodSandbox},
			{Op: story.CreateContainer},
			{Op: story.StartContainer},
			{Op: story.StopPodSandbox},
			{Op: story.RemovePodSandbox},
		},
	}
}

// close ends the daemon.
func (n *node) close() error {
	close(n.closing)
	n.watched.Wait()
	return errors.Join(n.daemon.Stop(), n.client.Close())
}

// watch starts the daemon again whenever it dies, and tells if nobody wanted that.
func (n *node) watch(ctx context.Context) {
	for {
		select {
		case <-n.daemon.Exited():
		case <-n.closing:
			return
		}
		if err := n.revive(ctx); err != nil {
			n.mu.Lock()
			n.broken = err
			close(n.up)
			n.mu.Unlock()
			return
		}
	}
}

// revive starts a daemon that is dead, and again if it is meant to die a second time.
func (n *node) revive(ctx context.Context) error {
	for {
		n.mu.Lock()
		wanted := n.ordered
		if !wanted {
			n.down()
		}
		n.ordered = false
		n.mu.Unlock()
		spent, err := n.faults.spend()
		if err != nil {
			return err
		}
		if !wanted && spent == 0 {
			return fmt.Errorf("the daemon has died by itself; the end of its log:\n%s", n.daemon.Tail())
		}
		if err := n.daemon.Kill(); err != nil { // it is dead: this only takes note of it
			return err
		}
		if err := n.daemon.Start(ctx); err != nil {
			if n.faults.deadly() && ctx.Err() == nil {
				continue // killed while it recovered
			}
			return err
		}
		n.mu.Lock()
		close(n.up)
		n.mu.Unlock()
		return nil
	}
}

// down notes that the daemon is dead, or will be in a moment. n.mu is held.
func (n *node) down() {
	n.deaths++
	n.tally.add("happens", "the daemon dies")
	select {
	case <-n.up:
		n.up = make(chan struct{})
	default: // it was down
	}
}

// serving waits until the daemon serves, and gives how many deaths there have been.
func (n *node) serving() (int, error) {
	for {
		n.mu.Lock()
		up := n.up
		n.mu.Unlock()
		select {
		case <-up:
		case <-time.After(2 * rpcTimeout):
			return 0, errors.New("the daemon does not come back")
		}
		n.mu.Lock()
		deaths, err, same := n.deaths, n.broken, up == n.up
		n.mu.Unlock()
		if err != nil || same {
			return deaths, err
		}
	}
}

// died says how many deaths there have been.
func (n *node) died() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.deaths
}

// end ends the daemon, and waits until it is back.
func (n *node) end(sig syscall.Signal) error {
	n.killing.Lock()
	defer n.killing.Unlock()
	if _, err := n.serving(); err != nil {
		return err
	}
	n.mu.Lock()
	n.ordered = true
	n.down()
	pid := n.daemon.PID()
	n.mu.Unlock()
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	_, err := n.serving()
	return err
}

// where leaves out what this package itself is and runs.
func (n *node) where() world.Where {
	w := n.daemon.World()
	w.IgnoreProcesses = append(w.IgnoreProcesses, "chaos.test", "sandflow")
	return w
}

// whole checks, while nobody lives, that the node is soon as it was before the first life.
func (n *node) whole(ctx context.Context, limit time.Duration) error {
	if _, err := n.serving(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*rpcTimeout)
	defer cancel()
	pods, err := n.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := n.client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	if len(pods.GetItems())+len(containers.GetContainers()) > 0 {
		return fmt.Errorf("there are still pods %v and containers %v", pods.GetItems(), containers.GetContainers())
	}
	if err := n.collect(ctx); err != nil {
		return err
	}
	diff, err := world.Settle(ctx, n.where(), n.before, limit)
	if err == nil && diff != "" {
		err = errors.New("left on the node:\n" + diff)
	}
	if err != nil {
		return err
	}
	return n.healthy(ctx)
}

// healthy asks the doctor.
func (n *node) healthy(ctx context.Context) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		cmd := exec.CommandContext(ctx, n.lab.Bin("sandflow"), "doctor", "--admin-socket", filepath.Join(n.daemon.State, "admin.sock"))
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the doctor ends with %w:\n%s", err, out)
		}
	}
}

// collect lets containerd collect its garbage: what is removed while it does so by itself it
// forgets until something else is removed.
func (n *node) collect(ctx context.Context) (err error) {
	c, err := client.New(n.daemon.Containerd, client.WithDefaultNamespace("k8s.io"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ls := c.LeasesService()
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	l, err := ls.Create(ctx, leases.WithRandomID())
	if err != nil {
		return err
	}
	return ls.Delete(ctx, l, leases.SynchronousDelete)
}

// holds notes that a pod has an address, which no other pod may have.
func (n *node) holds(pod, ip string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if other, ok := n.ips[ip]; ok && other != pod {
		return fmt.Errorf("pod %s has the address %s, and pod %s has it too", pod, ip, other)
	}
	n.ips[ip] = pod
	return nil
}

// frees is for a pod that may give its addresses back from now on.
func (n *node) frees(pod string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ip, p := range n.ips {
		if p == pod {
			delete(n.ips, ip)
		}
	}
}
