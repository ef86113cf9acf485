// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// TestCase82ManyContainers lists so many containers with so many annotations that the reply is
// beyond gRPC's own limit, before and after a restart.
func TestCase82ManyContainers(t *testing.T) {
	n := newNode(t, options{})
	count, size := 150, 48<<10
	if full() {
		count, size = 2000, 4<<10
	}
	cfg := n.pod("many")
	pod := n.run(cfg)
	var next atomic.Int64
	parallel(t, func() error {
		for i := next.Add(1); i <= int64(count); i = next.Add(1) {
			c := n.ctr(fmt.Sprintf("c-%d", i), "true")
			c.Annotations = map[string]string{"large": strings.Repeat("x", size)}
			c.Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
			if _, err := n.tryCreate(t.Context(), pod, cfg, c); err != nil {
				return err
			}
		}
		return nil
	})
	check := func() []*cri.Container {
		t.Helper()
		r, err := n.client.ListContainers(t.Context(), &cri.ListContainersRequest{})
		must(t, err)
		if got := proto.Size(r); len(r.GetContainers()) != count || got < 5<<20 {
			t.Errorf("%d containers in %d bytes", len(r.GetContainers()), got)
		}
		odd, err := n.client.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"odd": "1"}}})
		must(t, err)
		if len(odd.GetContainers()) != count/2 {
			t.Errorf("%d of %d are odd", len(odd.GetContainers()), count)
		}
		return r.GetContainers()
	}
	check()
	n.restart()
	all := make(chan string, count)
	for _, c := range check() {
		all <- c.GetId()
	}
	close(all)
	parallel(t, func() error {
		for id := range all {
			if _, err := n.client.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				return err
			}
		}
		return nil
	})
	if left := n.containers(); len(left) != 0 {
		t.Errorf("%d containers are left", len(left))
	}
	n.remove(pod)
	n.same()
}

// parallel runs ten of a kind at once.
func parallel(t *testing.T, work func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := work(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestCase83Churn creates and removes pods by many clients while the daemon is killed again and
// again: in the end nothing is left but a container that was there all the time, with cgroups
// of its own making.
func TestCase83Churn(t *testing.T) {
	n := newNode(t, options{})
	cfg := privileged(n.pod("stays"))
	stays := n.run(cfg)
	c := n.ctr("stays", "sh", "-c", "mkdir /sys/fs/cgroup/pids/inner && echo $$ > /sys/fs/cgroup/pids/inner/cgroup.procs; sleep 4840")
	c.Linux.SecurityContext.Privileged = true
	ctr := n.started(stays, cfg, c)
	pods := int64(30)
	if full() {
		pods = 200
	}
	var next atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		parallel(t, func() error {
			for i := next.Add(1); i <= pods; i = next.Add(1) {
				if err := n.churn(fmt.Sprintf("churn-%d", i)); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	kills := 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(600 * time.Millisecond):
			must(t, n.daemon.Kill())
			must(t, n.daemon.Start(t.Context()))
			kills++
		}
	}
	if kills < 2 {
		t.Errorf("the daemon was killed %d times only", kills)
	}
	for _, p := range n.pods() {
		if p.GetId() != stays {
			n.remove(p.GetId())
		}
	}
	if s := n.status(ctr); s.GetState() != cri.ContainerState_CONTAINER_RUNNING || len(n.pidsWith("sleep\x004840")) != 1 || n.exec(ctr, "echo", "hi") != "hi\n" {
		t.Errorf("the container that stays is %v", s.GetState())
	}
	if left := n.pidsWith("sleep\x004841"); len(left) != 0 {
		t.Errorf("processes of nobody: %v", left)
	}
	n.remove(stays)
	n.same()
}

// churn runs a pod with a container to its end, or as far as it gets: the daemon may be away in
// the middle of it, and all that counts is what is left. It begins when the daemon answers.
func (n *node) churn(name string) error {
	c, err := harness.Dial(n.daemon.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx := n.t.Context()
	if _, err := c.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true)); err != nil && status.Code(err) != codes.Unavailable {
		return err
	}
	cfg := n.pod(name)
	pod, err := c.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return nil
	}
	id := pod.GetPodSandboxId()
	ctr, err := c.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: id, SandboxConfig: cfg, Config: n.ctr("c", "sleep", "4841")})
	if err == nil {
		_, _ = c.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: ctr.GetContainerId()})
	}
	_, _ = c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	_, _ = c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return nil
}

// TestCase84SlowUnmount has the end of some containers hang where their root is unmounted, as on
// a disk that is flushed: others start and end all the same.
func TestCase84SlowUnmount(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("slow")
	slow := n.run(cfg)
	var stuck []string
	for i := range 5 {
		stuck = append(stuck, n.created(slow, cfg, n.ctr(fmt.Sprintf("c-%d", i), "true")))
	}
	const fault = "undo:rootfs=sleep6s"
	n.fault(fault)
	var wg sync.WaitGroup
	for _, id := range stuck {
		wg.Go(func() {
			if _, err := n.client.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "all of them to hang", func() bool {
		raw, _ := os.ReadFile(n.faults + ".log")
		return strings.Count(string(raw), fault) == len(stuck)
	})
	n.fault()
	other := n.pod("quick")
	pod := n.run(other)
	n.removeContainer(n.started(pod, other, n.ctr("c", "sleep", "1000")))
	n.remove(pod)
	if left := len(n.containers()); left != len(stuck) {
		t.Errorf("another pod's life took so long that only %d of %d slow ones are left", left, len(stuck))
	}
	wg.Wait()
	n.remove(slow)
	n.same()
}
