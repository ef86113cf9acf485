// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase4Twice calls what ends things twice on real ones, and on ones that never were: no
// plugin is called for those.
func TestCase4Twice(t *testing.T) {
	n := newNode(t, options{})
	ctx := t.Context()
	twice := func(pod, ctr, image string) {
		t.Helper()
		for range 2 {
			_, err := n.client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: ctr})
			must(t, err)
			_, err = n.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod})
			must(t, err)
		}
		for range 2 {
			_, err := n.client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: ctr})
			must(t, err)
			_, err = n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod})
			must(t, err)
			_, err = n.client.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}})
			must(t, err)
		}
	}
	calls := len(n.cniCalls())
	twice(unknown, unknown, "cases.example/no/such:1")
	if got := n.cniCalls(); len(got) != calls {
		t.Errorf("for unknown ones the plugin was called: %v", got[calls:])
	}
	ref := n.image("twice:1", nil, layer(t, file{Name: "twice", Body: "x"}))
	cfg := n.pod("twice")
	pod := n.run(cfg)
	calls = len(n.cniCalls())
	twice(pod, n.started(pod, cfg, n.ctrOf(ref, "c", "sleep", "1000")), ref)
	if got := n.cniCalls()[calls:]; len(got) != 1 || !strings.HasPrefix(got[0], "DEL "+pod) {
		t.Errorf("the plugin's calls: %v", got)
	}
	n.same()
}

// TestCase9TrueStates kills a pod's shim: its container says what is true, whether it runs on or
// not, and ends with StopPodSandbox.
func TestCase9TrueStates(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("orphan")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sleep", "4820"))
	running := func() bool { return len(n.pidsWith("sleep\x004820")) > 0 }
	waitFor(t, "the program in the place of the runtime's init", running)
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	waitFor(t, "the pod to be NOTREADY", func() bool { return n.podStatus(pod).GetState() == cri.PodSandboxState_SANDBOX_NOTREADY })
	if s := n.status(ctr); (s.GetState() == cri.ContainerState_CONTAINER_RUNNING) != running() {
		t.Errorf("the container is said to be %v, its process runs: %v", s.GetState(), running())
	}
	for _, pid := range n.pidsWith("sleep\x004820") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	if s := n.exited(ctr); s.GetExitCode() == 0 {
		t.Errorf("killed, and exit code %d", s.GetExitCode())
	}
	n.remove(pod)
	cfg = n.pod("orphan")
	pod = n.run(cfg)
	n.started(pod, cfg, n.ctr("c", "sleep", "4820"))
	waitFor(t, "the program in the place of the runtime's init", running)
	for _, pid := range n.pidsWith(pod) {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	calls := len(n.cniCalls())
	_, err := n.client.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: pod})
	must(t, err)
	if running() {
		t.Error("the container survives StopPodSandbox")
	}
	if got := n.cniCalls()[calls:]; len(got) == 0 || !strings.HasPrefix(got[0], "DEL "+pod) {
		t.Errorf("the plugin's calls: %v", got)
	}
	n.remove(pod)
	n.same()
}

// TestCase14OOMKilled runs containers out of memory, ten at once.
func TestCase14OOMKilled(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("hungry")
	pod := n.run(cfg)
	rounds := 1
	if full() {
		rounds = 5
	}
	for range rounds {
		var wg sync.WaitGroup
		ids := make([]string, 10)
		for i := range ids {
			c := n.ctr(fmt.Sprintf("hungry-%d", i), "sh", "-c", "tail -c 1000000000 /dev/zero")
			c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, MemorySwapLimitInBytes: 32 << 20}
			ids[i] = n.created(pod, cfg, c)
		}
		for _, id := range ids {
			wg.Go(func() {
				if err := n.tryStart(t.Context(), id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, id := range ids {
			if s := n.exited(id); s.GetExitCode() != 137 || s.GetReason() != "OOMKilled" {
				t.Errorf("exit code %d, reason %q", s.GetExitCode(), s.GetReason())
			}
			n.removeContainer(id)
		}
	}
	c := n.ctr("modest", "sh", "-c", `sh -c 'kill -9 $$'; exit $?`)
	c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}
	if s := n.exited(n.started(pod, cfg, c)); s.GetExitCode() != 137 || s.GetReason() == "OOMKilled" {
		t.Errorf("killed otherwise: exit code %d, reason %q", s.GetExitCode(), s.GetReason())
	}
	n.remove(pod)
	n.same()
}

// full tells that the tests shall run at their full size.
func full() bool { return os.Getenv("SANDFLOW_FULL") != "" }

// TestCase15NameAfterFailure fails creates in several ways; the next good request with the same
// metadata succeeds each time.
func TestCase15NameAfterFailure(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("host")
	pod := n.run(cfg)
	good := n.ctr("same", "sleep", "1000")
	for name, spoil := range map[string]func(*cri.ContainerConfig){
		"mount source": func(c *cri.ContainerConfig) { c.Mounts = []*cri.Mount{{HostPath: "relative", ContainerPath: "/m"}} },
		"a file's file": func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: "/etc/passwd/x", ContainerPath: "/m"}}
		},
		"user":       func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "nobody-knows" },
		"CDI device": func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "vendor.example/class=none"}} },
		"device": func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/none", ContainerPath: "/dev/none"}}
		},
	} {
		bad := n.ctr("same", "sleep", "1000")
		spoil(bad)
		if id, err := n.tryCreate(t.Context(), pod, cfg, bad); err == nil {
			t.Errorf("%s: container %s was made", name, id)
			n.removeContainer(id)
		}
		n.removeContainer(n.created(pod, cfg, good))
	}
	for _, action := range containerActions {
		fault := "do:" + action + "=sleep200ms"
		n.fault(fault)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := n.tryCreate(ctx, pod, cfg, good)
			done <- err
		}()
		n.reached(fault)
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Errorf("cancelled in %s: %v", action, err)
		}
		n.fault()
		n.removeContainer(n.created(pod, cfg, good))
	}
	n.remove(pod)
	n.same()
}

// TestCase16FailedStart starts a command that is not there; what is known of it outlives
// the daemon, and the next attempt is free.
func TestCase16FailedStart(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("host")
	pod := n.run(cfg)
	c := n.ctr("absent", "/no/such/command")
	id := n.created(pod, cfg, c)
	refused(t, n.tryStart(t.Context(), id), "/no/such/command")
	before := n.status(id)
	if before.GetState() != cri.ContainerState_CONTAINER_EXITED || before.GetExitCode() != 128 || before.GetReason() != "StartError" ||
		!strings.Contains(before.GetMessage(), "/no/such/command") || before.GetFinishedAt() < before.GetCreatedAt() {
		t.Errorf("the status is %v", before)
	}
	n.restart()
	if after := n.status(id); after.String() != before.String() {
		t.Errorf("after the restart the status is\n%v\nit was\n%v", after, before)
	}
	_, err := n.client.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id})
	must(t, err)
	again := n.ctr("absent", "true")
	again.Metadata.Attempt = 1
	if s := n.exited(n.started(pod, cfg, again)); s.GetExitCode() != 0 {
		t.Errorf("the next attempt: %v", s)
	}
	n.removeContainer(id)
	n.remove(pod)
	n.same()
}

// TestCase17DamagedRecords spoils records of the journal: the daemon starts, says which, serves
// the others, and lets the bad ones be removed.
func TestCase17DamagedRecords(t *testing.T) {
	n := newNode(t, options{})
	var pods, ctrs []string
	cfgs := []*cri.PodSandboxConfig{n.pod("whole"), n.pod("torn"), n.pod("lost"), n.pod("double"), n.pod("cut")}
	for _, cfg := range cfgs {
		pods = append(pods, n.run(cfg))
		ctrs = append(ctrs, n.started(pods[len(pods)-1], cfg, n.ctr("c", "sleep", "4830")))
	}
	must(t, n.daemon.Stop())
	n.journal(func(records *bbolt.Bucket) error {
		must(t, records.Put([]byte("container/"+ctrs[1]), nil))
		key := []byte("container/" + ctrs[4])
		must(t, records.Put(key, records.Get(key)[:len(records.Get(key))/2]))
		must(t, records.Delete([]byte("container/"+ctrs[2])))
		// Two that hold one name.
		return records.Put([]byte("sandbox/"+pods[3]), []byte(strings.ReplaceAll(string(records.Get([]byte("sandbox/"+pods[3]))), "double", "whole")))
	})
	must(t, n.daemon.Start(t.Context()))
	if s := n.status(ctrs[0]); s.GetState() != cri.ContainerState_CONTAINER_RUNNING || n.exec(ctrs[0], "echo", "hi") != "hi\n" {
		t.Errorf("the healthy container is %v", s.GetState())
	}
	if s := n.status(ctrs[1]); s.GetState() != cri.ContainerState_CONTAINER_UNKNOWN {
		t.Errorf("the container of the empty record is %v", s.GetState())
	}
	log, err := os.ReadFile(n.daemon.Log)
	must(t, err)
	has(t, "the log", string(log), ctrs[1], pods[3])
	_, err = n.client.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: ctrs[1]})
	must(t, err)
	for _, pod := range pods {
		n.remove(pod)
	}
	if left := n.containers(); len(left) > 0 {
		t.Errorf("not removed with their pods: %v", left)
	}
	n.removeContainer(ctrs[2]) // nothing knows of it any more
	if left := n.pidsWith("sleep\x004830"); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	n.same()
	for _, cfg := range cfgs {
		n.remove(n.run(cfg)) // no name is taken
	}
	n.same()
}

// journal changes the records of the stopped daemon.
func (n *node) journal(change func(*bbolt.Bucket) error) {
	n.t.Helper()
	db, err := bbolt.Open(filepath.Join(n.daemon.Root, "journal.db"), 0o600, &bbolt.Options{Timeout: time.Second})
	must(n.t, err)
	must(n.t, db.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("records"))) }))
	must(n.t, db.Close())
}

// TestCase18StopSignals stops containers whose images and requests name signals in many ways.
func TestCase18StopSignals(t *testing.T) {
	n := newNode(t, options{})
	const script = `for s in 3 10 12 15 37; do trap "echo $s; exit 0" $s; done; touch /ready; while :; do sleep 0.05; done`
	cfg := n.pod("signals")
	pod := n.run(cfg)
	for i, k := range []struct {
		image   string
		request cri.Signal
		want    string
		told    cri.Signal
	}{
		{"SIGRTMIN+3", 0, "37", cri.Signal_SIGNAL_SIGRTMINPLUS3},
		{"37", 0, "37", cri.Signal_SIGNAL_SIGRTMINPLUS3},
		{"RTMIN+3", 0, "37", cri.Signal_SIGNAL_SIGRTMINPLUS3},
		{"SIGQUIT", 0, "3", cri.Signal_SIGNAL_SIGQUIT},
		{"sigterm", 0, "15", cri.Signal_SIGNAL_SIGTERM},
		{"nonsense", 0, "15", cri.Signal_SIGNAL_SIGTERM},
		{"", 0, "15", cri.Signal_SIGNAL_SIGTERM},
		{"SIGQUIT", cri.Signal_SIGNAL_SIGUSR1, "10", cri.Signal_SIGNAL_SIGUSR1},
	} {
		ref := n.image(fmt.Sprintf("signals:%d", i), func(c *v1.Config) { c.StopSignal = k.image }, layer(t, file{Name: "mark", Body: k.image}))
		c := n.ctrOf(ref, "c", "sh", "-c", script)
		c.StopSignal = k.request
		id, err := n.tryCreate(t.Context(), pod, cfg, c)
		if err != nil {
			if k.image != "nonsense" {
				t.Errorf("%s: %v", k.image, err)
			}
			continue // refused at create is as good
		}
		must(t, n.tryStart(t.Context(), id))
		waitFor(t, "the traps", func() bool {
			r, err := n.client.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"test", "-e", "/ready"}})
			return err == nil && r.GetExitCode() == 0
		})
		if got := n.status(id).GetStopSignal(); got != k.told {
			t.Errorf("%s: the status says %v", k.image, got)
		}
		_, err = n.client.StopContainer(t.Context(), &cri.StopContainerRequest{ContainerId: id, Timeout: 10})
		must(t, err)
		if got := strings.TrimSpace(rebuild(n.log(cfg, "c"), "stdout")); got != k.want {
			t.Errorf("%s, request %v: the container got %q, want %s", k.image, k.request, got, k.want)
		}
		n.removeContainer(id)
		must(t, os.Remove(filepath.Join(cfg.GetLogDirectory(), "c.log")))
	}
	n.remove(pod)
}
