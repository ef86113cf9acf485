// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// limitFiles are the limits of a cgroup, on v1 by controller.
var limitFiles = map[string][]string{
	"cpuset": {"cpuset.cpus", "cpuset.mems"},
	"memory": {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max"},
	"cpu":    {"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.weight", "cpu.max"},
}

// limitsOf gives the limits that the kernel holds a process to.
func limitsOf(t *testing.T, pid int) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller, files := range limitFiles {
			if f[1] != controller && f[0] != "0" {
				continue
			}
			for _, file := range files {
				if raw, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", f[1], f[2], file)); err == nil {
					out[file] = strings.TrimSpace(string(raw))
				}
			}
		}
	}
	if len(out) < 5 {
		t.Fatalf("only %v is known of the limits of process %d", out, pid)
	}
	return out
}

// hog is a container with 24 MiB of memory that cannot be given back, or with none.
func (n *node) hog(pod string, cfg *cri.PodSandboxConfig, limits *cri.LinuxContainerResources) (ctr string, pid int) {
	n.t.Helper()
	c := n.ctr(fmt.Sprintf("hog-%d", names.Add(1)), "sh", "-c", "x=$(head -c 8000000 /dev/zero | tr '\\0' x); y=$x$x; touch /ready; exec 3<&0; while :; do sleep 0.2; done")
	c.Linux.Resources = limits
	ctr = n.started(pod, cfg, c)
	waitFor(n.t, "the container's memory", func() bool {
		r, err := n.client.ExecSync(n.t.Context(), &cri.ExecSyncRequest{ContainerId: ctr, Cmd: []string{"test", "-e", "/ready"}, Timeout: 10})
		return err == nil && r.GetExitCode() == 0
	})
	return ctr, n.initOf(ctr)
}

// initOf is the first process of a container.
func (n *node) initOf(ctr string) int {
	n.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/cgroup")
	must(n.t, err)
	for _, path := range found {
		raw, err := os.ReadFile(path)
		pid := 0
		if err == nil && strings.Contains(string(raw), ctr) {
			_, err = fmt.Sscanf(path, "/proc/%d/cgroup", &pid)
			must(n.t, err)
			return pid
		}
	}
	n.t.Fatalf("no process of container %s is to be seen", ctr)
	return 0
}

func (n *node) update(ctr string, limits *cri.LinuxContainerResources) error {
	n.t.Helper()
	_, err := n.client.UpdateContainerResources(n.t.Context(), &cri.UpdateContainerResourcesRequest{ContainerId: ctr, Linux: limits})
	return err
}

// parentWithQuota makes the cgroup that kubelet would make for a pod, with half a CPU.
func (n *node) parentWithQuota(name string) string {
	n.t.Helper()
	parent := filepath.Join(n.lab.CgroupParent, name)
	dir := filepath.Join("/sys/fs/cgroup/cpu", parent)
	must(n.t, os.MkdirAll(dir, 0o755))
	must(n.t, os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte("50000"), 0o644))
	n.t.Cleanup(func() {
		for controller := range limitFiles {
			must(n.t, removeEmpty(filepath.Join("/sys/fs/cgroup", controller, parent)))
		}
	})
	return parent
}

// TestUpdatesAreWholeOrNothing has the kernel refuse one limit of an update after it has taken
// others, with and without limits before, by each kind of runtime: then the kernel, the status,
// the list of stats and the same after a restart tell what they told before.
func TestUpdatesAreWholeOrNothing(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"); err != nil {
		t.Skip("the refusals of this test are those of cgroup v1")
	}
	l := lab(t)
	stock := fmt.Sprintf("[runtime.handlers.stock]\ntype = %q\noptions = {BinaryName = %q, Root = %q}\n",
		l.Bin("containerd-shim-runc-v2"), l.Bin("runc"), filepath.Join("/run", "stock-limits"))
	handlers := map[string]harness.Options{"": {}, "stock": {Extra: stock}}
	if crun, err := exec.LookPath("crun"); err == nil {
		handlers["crun"] = harness.Options{HideCgroup2: true, Extra: fmt.Sprintf("[runtime.handlers.crun]\nbinary = %q\noci_version = \"1.0.2\"\n", crun)}
	}
	for handler, o := range handlers {
		t.Run("handler "+handler, func(t *testing.T) {
			n := newNode(t, options{Options: o})
			cfg := n.pod("updated")
			cfg.Linux.CgroupParent = n.parentWithQuota("updated")
			pod, err := n.tryRun(t.Context(), cfg, handler)
			must(t, err)
			for _, limits := range []*cri.LinuxContainerResources{
				nil,
				{MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 96 << 20, CpuShares: 100, CpuQuota: 20000, CpuPeriod: 100000},
			} {
				n.refusedUpdates(pod, cfg, limits)
			}
			n.remove(pod)
		})
	}
}

func (n *node) refusedUpdates(pod string, cfg *cri.PodSandboxConfig, limits *cri.LinuxContainerResources) {
	n.t.Helper()
	ctr, pid := n.hog(pod, cfg, limits)
	kernel, told := limitsOf(n.t, pid), n.status(ctr).GetResources().String()
	for what, update := range map[string]*cri.LinuxContainerResources{
		"a quota above the pod's":  {MemoryLimitInBytes: 48 << 20, MemorySwapLimitInBytes: 48 << 20, CpuShares: 300, CpuQuota: 90000},
		"more memory, that quota":  {MemoryLimitInBytes: 512 << 20, MemorySwapLimitInBytes: 768 << 20, CpusetCpus: "0", CpuQuota: 90000},
		"memory that is in use":    {CpusetCpus: "0", CpuShares: 300, CpuQuota: 10000, MemoryLimitInBytes: 8 << 20},
		"a CPU that is not there":  {MemoryLimitInBytes: 48 << 20, CpuShares: 300, CpusetCpus: "0-4000"},
		"a node that is not there": {MemoryLimitInBytes: 48 << 20, CpuShares: 300, CpusetCpus: "0", CpusetMems: "900"},
	} {
		if err := n.update(ctr, update); err == nil {
			n.t.Errorf("%s is taken", what)
		}
		if now := limitsOf(n.t, pid); !maps.Equal(now, kernel) {
			n.t.Errorf("%s: the kernel has\n%v, had\n%v", what, now, kernel)
		}
		if now := n.status(ctr).GetResources().String(); now != told {
			n.t.Errorf("%s: the status tells %s, told %s", what, now, told)
		}
	}
	// What can be done is done, whole.
	must(n.t, n.update(ctr, &cri.LinuxContainerResources{MemoryLimitInBytes: 80 << 20, CpuShares: 300, CpuQuota: 30000, CpuPeriod: 100000, CpusetCpus: "0"}))
	now, status := limitsOf(n.t, pid), n.status(ctr).GetResources().GetLinux()
	if now["memory.limit_in_bytes"] != fmt.Sprint(80<<20) || now["cpu.shares"] != "300" || now["cpu.cfs_quota_us"] != "30000" || now["cpuset.cpus"] != "0" {
		n.t.Errorf("after a good update the kernel has %v", now)
	}
	if both := max(limits.GetMemorySwapLimitInBytes(), 80<<20); now["memory.memsw.limit_in_bytes"] != fmt.Sprint(both) {
		n.t.Errorf("memory with swap is limited to %s, want %d", now["memory.memsw.limit_in_bytes"], both)
	}
	if status.GetMemoryLimitInBytes() != 80<<20 || status.GetCpuShares() != 300 || status.GetCpuQuota() != 30000 || status.GetCpusetCpus() != "0" {
		n.t.Errorf("after a good update the status tells %v", status)
	}
	n.removeContainer(ctr)
}

// lagging is an OCI runtime that does what it is asked, and then waits as long as a file is
// there, and says that it has failed if another is.
const lagging = `#!/bin/sh
case " $* " in
*" update "*)
	%[1]s "$@" || exit
	while [ -e %[2]s.wait ]; do
		touch %[2]s.done
		sleep 0.02
	done
	[ ! -e %[2]s.fail ] || exit 1
	exit 0
	;;
esac
exec %[1]s "$@"
`

// TestUpdateIsCutOff kills the daemon when the kernel has the new limits and the record the old
// ones; also, the runtime says that it has failed when it has not.
func TestUpdateIsCutOff(t *testing.T) {
	l := lab(t)
	at := filepath.Join(l.Dir, "lagging")
	must(t, os.WriteFile(at, fmt.Appendf(nil, lagging, l.Bin("runc"), at), 0o755))
	n := newNode(t, options{Options: harness.Options{Extra: fmt.Sprintf("[runtime.handlers.lagging]\nbinary = %q\n", at)}})
	cfg := n.pod("cut-off")
	pod, err := n.tryRun(t.Context(), cfg, "lagging")
	must(t, err)
	ctr, pid := n.hog(pod, cfg, &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 100})
	kernel, told := limitsOf(t, pid), n.status(ctr).GetResources().String()
	update := &cri.LinuxContainerResources{MemoryLimitInBytes: 96 << 20, CpuShares: 300, CpuQuota: 70000, CpuPeriod: 100000}

	must(t, os.WriteFile(at+".fail", nil, 0o644))
	if err := n.update(ctr, update); err == nil {
		t.Error("the runtime has failed, and the update has not")
	}
	n.unchanged(ctr, pid, kernel, told)
	must(t, os.Remove(at+".fail"))

	must(t, os.WriteFile(at+".wait", nil, 0o644))
	lost := make(chan error, 1)
	go func() { lost <- n.update(ctr, update) }()
	waitFor(t, "the new limits", func() bool { _, err := os.Stat(at + ".done"); return err == nil })
	if now := limitsOf(t, pid); maps.Equal(now, kernel) {
		t.Fatal("the runtime has changed nothing")
	}
	must(t, n.daemon.Kill())
	if err := <-lost; err == nil {
		t.Error("an update whose daemon was killed succeeded")
	}
	must(t, os.Remove(at+".wait"))
	must(t, n.daemon.Start(t.Context()))
	waitFor(t, "the old limits", func() bool { return maps.Equal(limitsOf(t, pid), kernel) })
	n.unchanged(ctr, pid, kernel, told)
	must(t, n.update(ctr, update))
	if got := n.status(ctr).GetResources().GetLinux().GetCpuQuota(); got != 70000 {
		t.Errorf("the quota is %d", got)
	}
	n.remove(pod)
	n.same()
}

func (n *node) unchanged(ctr string, pid int, kernel map[string]string, told string) {
	n.t.Helper()
	if now := limitsOf(n.t, pid); !maps.Equal(now, kernel) {
		n.t.Errorf("the kernel has\n%v, had\n%v", now, kernel)
	}
	if now := n.status(ctr).GetResources().String(); now != told {
		n.t.Errorf("the status tells %s, told %s", now, told)
	}
}

// TestUpdateOfACreatedContainer has an update of what is not started yet take effect at its
// start, and one that cannot be journaled change nothing; its oom_score_adj counts too.
func TestUpdateOfACreatedContainer(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("created")
	pod := n.run(cfg)
	c := n.ctr("c", "sleep", "4719")
	c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, CpuShares: 100, OomScoreAdj: 900}
	ctr := n.created(pod, cfg, c)
	must(t, n.update(ctr, &cri.LinuxContainerResources{CpuShares: 200, OomScoreAdj: 950}))
	n.fault("journal:container.standing.created=fail*1")
	if err := n.update(ctr, &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}); err == nil {
		t.Error("an update that was not journaled succeeded")
	}
	n.fault()
	refused(t, n.update(ctr, &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: -5}), "cpu_shares", codes.InvalidArgument)
	if got := n.status(ctr).GetResources().GetLinux(); got.GetMemoryLimitInBytes() != 32<<20 || got.GetCpuShares() != 200 || got.GetOomScoreAdj() != 950 {
		t.Errorf("the status tells %v", got)
	}
	must(t, n.tryStart(t.Context(), ctr))
	pid := n.initOf(ctr)
	if adj := read(t, fmt.Sprintf("/proc/%d/oom_score_adj", pid)); adj != "950" {
		t.Errorf("oom_score_adj is %s", adj)
	}
	now := limitsOf(t, pid)
	if limit := now["memory.limit_in_bytes"] + now["memory.max"]; limit != fmt.Sprint(32<<20) {
		t.Errorf("started with %v", now)
	}
	must(t, n.update(ctr, &cri.LinuxContainerResources{CpuShares: 300, OomScoreAdj: 980}))
	if got := n.status(ctr).GetResources().GetLinux(); got.GetCpuShares() != 300 || got.GetOomScoreAdj() != 950 {
		t.Errorf("while it runs oom_score_adj cannot be changed; the status tells %v", got)
	}
	n.remove(pod)
	n.same()
}
