// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// nriPlugin notes what it is told, sets a variable in each container and doubles CPU shares.
type nriPlugin struct {
	stub stub.Stub

	mu     sync.Mutex
	events []string
	synced chan []string
	refuse error
}

func (n *node) plugin() *nriPlugin {
	n.t.Helper()
	p := &nriPlugin{synced: make(chan []string, 1)}
	s, err := stub.New(p, stub.WithPluginName("integration"), stub.WithPluginIdx("10"),
		stub.WithSocketPath(n.daemon.NRI), stub.WithOnClose(func() {}))
	must(n.t, err)
	p.stub = s
	must(n.t, s.Start(n.t.Context()))
	n.t.Cleanup(s.Stop)
	return p
}

func (p *nriPlugin) note(event string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, event)
}

func (p *nriPlugin) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := strings.Join(p.events, " ")
	p.events = nil
	return events
}

func (p *nriPlugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	var all []string
	for _, x := range pods {
		all = append(all, x.GetName())
	}
	for _, x := range containers {
		all = append(all, x.GetName()+" "+x.GetState().String())
	}
	p.synced <- all
	return nil, nil
}

func (p *nriPlugin) RunPodSandbox(context.Context, *api.PodSandbox) error {
	p.note("run")
	return p.refuse
}

func (p *nriPlugin) StopPodSandbox(context.Context, *api.PodSandbox) error {
	p.note("stop")
	return nil
}

func (p *nriPlugin) RemovePodSandbox(context.Context, *api.PodSandbox) error {
	p.note("remove")
	return nil
}

func (p *nriPlugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.note("create-" + c.GetName())
	a := &api.ContainerAdjustment{}
	a.AddEnv("FROM_PLUGIN", "hello")
	return a, nil, nil
}

func (p *nriPlugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("start-" + c.GetName())
	return nil
}

func (p *nriPlugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.note("stop-" + c.GetName())
	return nil, nil
}

func (p *nriPlugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.note("remove-" + c.GetName())
	return nil
}

func (p *nriPlugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	return []*api.ContainerUpdate{nriShares(c.GetId(), 2*r.GetCpu().GetShares().GetValue())}, nil
}

func nriShares(id string, n uint64) *api.ContainerUpdate {
	return &api.ContainerUpdate{ContainerId: id, Linux: &api.LinuxContainerUpdate{
		Resources: &api.LinuxResources{Cpu: &api.LinuxCPU{Shares: api.UInt64(n)}},
	}}
}

func (n *node) nriTold(p *nriPlugin, want string) {
	n.t.Helper()
	if got := p.take(); got != want {
		n.t.Errorf("the plugin was told\n  %s\nwant\n  %s", got, want)
	}
}

// TestNRI runs a pod under a plugin: it is told everything in order, what it wants is done,
// a kill of the daemon in between loses nothing, and nothing stays.
func TestNRI(t *testing.T) {
	n := newNode(t, options{})
	p := n.plugin()
	<-p.synced
	cfg := n.pod("watched")
	p.refuse = errors.New("not today")
	_, err := n.tryRun(t.Context(), cfg, "")
	refused(t, err, "not today", codes.FailedPrecondition)
	n.nriTold(p, "run stop remove")
	n.same()
	p.refuse = nil
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sh", "-c", "echo $FROM_PLUGIN; exec sleep 1000"))
	waitFor(t, "the variable of the plugin", func() bool {
		log := n.log(cfg, "c")
		return len(log) == 1 && log[0].text == "hello"
	})
	shares := func() int64 { return n.status(ctr).GetResources().GetLinux().GetCpuShares() }
	_, err = n.client.UpdateContainerResources(t.Context(), &cri.UpdateContainerResourcesRequest{
		ContainerId: ctr, Linux: &cri.LinuxContainerResources{CpuShares: 300},
	})
	must(t, err)
	if got := shares(); got != 600 {
		t.Errorf("the plugin doubles shares of 300; they are %d", got)
	}
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{nriShares(ctr, 77), nriShares("none", 1)})
	if err != nil || len(failed) != 1 || shares() != 77 {
		t.Errorf("update out of turn: failed %v, %v, shares %d", failed, err, shares())
	}
	n.nriTold(p, "run create-c start-c")
	must(t, n.daemon.Kill())
	must(t, n.daemon.Start(t.Context()))
	p = n.plugin()
	if got := <-p.synced; !slices.Equal(got, []string{"watched", "c CONTAINER_RUNNING"}) {
		t.Errorf("after a restart the plugin is given %q", got)
	}
	n.remove(pod)
	n.nriTold(p, "stop-c stop remove-c remove")
	n.same()
}
