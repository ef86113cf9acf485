// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// TestCase70HugePages sends what kubelet sends whether there is a controller or not.
func TestCase70HugePages(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("huge")
	pod := n.run(cfg)
	limited := func(limits ...*cri.HugepageLimit) *cri.ContainerConfig {
		c := n.ctr("c", "true")
		c.Linux.Resources = &cri.LinuxContainerResources{HugepageLimits: limits}
		return c
	}
	n.output(pod, cfg, limited(&cri.HugepageLimit{PageSize: "2MB"}, &cri.HugepageLimit{PageSize: "1GB"}))
	for _, size := range []string{"3MB", "huge", ""} {
		n.notCreated(pod, cfg, limited(&cri.HugepageLimit{PageSize: size}), "page")
	}
	four := limited(&cri.HugepageLimit{PageSize: "2MB", Limit: 4 << 20})
	if found, _ := filepath.Glob("/sys/fs/cgroup/hugetlb/hugetlb.2MB.*"); len(found) > 0 {
		n.output(pod, cfg, four)
	} else {
		n.notCreated(pod, cfg, four, "2MB") // not enforced, so not accepted
	}
	n.remove(pod)
	n.same()
}

// TestCase71CgroupParent looks where processes are, for parents of all forms.
func TestCase71CgroupParent(t *testing.T) {
	n := newNode(t, options{})
	r, err := n.client.RuntimeConfig(t.Context(), &cri.RuntimeConfigRequest{})
	must(t, err)
	if got := r.GetLinux().GetCgroupDriver(); got != cri.CgroupDriver_CGROUPFS {
		t.Fatalf("the driver is %v", got)
	}
	below := n.lab.CgroupParent
	for parent, want := range map[string]string{
		"":                         below,
		below:                      below,
		below + "/not/there/yet":   below + "/not/there/yet",
		below + "/a/../b":          "", // refused
		below + "/../../outside":   "",
		"../outside":               "",
		"kubepods-burstable.slice": "",
	} {
		cfg := n.pod("placed")
		cfg.Linux.CgroupParent = parent
		pod, err := n.tryRun(t.Context(), cfg, "")
		if err == nil && want == "" {
			_, err = n.tryCreate(t.Context(), pod, cfg, n.ctr("c", "true"))
		}
		if want == "" {
			refused(t, err, "cgroup", codes.InvalidArgument)
			if pod != "" {
				n.remove(pod)
			}
			continue
		}
		must(t, err)
		n.started(pod, cfg, n.ctr("c", "sleep", "4810"))
		for _, pid := range n.pidsWith("sleep\x004810") {
			for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
				if f := strings.SplitN(strings.TrimSpace(line), ":", 3); f[1] == "memory" && !strings.HasPrefix(f[2], want+"/") {
					t.Errorf("parent %q: process %d is in %s", parent, pid, f[2])
				}
			}
		}
		n.remove(pod)
	}
	for _, m := range []string{"memory", "cpu", "pids"} {
		must(t, removeEmpty(filepath.Join("/sys/fs/cgroup", m, below, "not")))
	}
	n.before["cgroups"] = n.count()["cgroups"] // parents are kubelet's, so they stay
	n.same()
}

// removeEmpty removes a cgroup and those below it.
func removeEmpty(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "*/"))
	if err != nil {
		return err
	}
	for _, d := range found {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			if err := removeEmpty(d); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// TestCase74CPURate asks for a busy container's rate twice at a time, by two clients.
func TestCase74CPURate(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("busy")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("busy", "sh", "-c", "while :; do :; done"))
	stats := func(c *harness.Client) *cri.CpuUsage {
		r, err := c.ContainerStats(t.Context(), &cri.ContainerStatsRequest{ContainerId: ctr})
		must(t, err)
		if m := r.GetStats().GetMemory(); m.GetWorkingSetBytes().GetValue() == 0 || m.GetWorkingSetBytes().GetValue() > m.GetUsageBytes().GetValue() {
			t.Errorf("working set %d of %d used", m.GetWorkingSetBytes().GetValue(), m.GetUsageBytes().GetValue())
		}
		return r.GetStats().GetCpu()
	}
	if first := stats(n.client); first.GetUsageNanoCores() != nil && first.GetUsageNanoCores().GetValue() == 0 {
		t.Error("the first reply has a rate of zero")
	}
	second, err := harness.Dial(n.daemon.Socket)
	must(t, err)
	defer func() { _ = second.Close() }()
	var last uint64
	known := map[*harness.Client]int{}
	for range 8 {
		time.Sleep(300 * time.Millisecond)
		for _, c := range []*harness.Client{n.client, second} {
			got := stats(c)
			if total := got.GetUsageCoreNanoSeconds().GetValue(); total < last {
				t.Errorf("the total fell from %d to %d", last, total)
			} else {
				last = total
			}
			if rate := got.GetUsageNanoCores(); rate != nil {
				known[c]++
				// A loaded machine may not give it all of a core; it gives it some.
				if rate.GetValue() < 1e7 || rate.GetValue() > 13e8 {
					t.Errorf("a busy container's rate is %d", rate.GetValue())
				}
			}
		}
	}
	if known[n.client] < 4 || known[second] < 4 {
		t.Errorf("of 8 replies to each client %d and %d have a rate", known[n.client], known[second])
	}
	r, err := n.client.PodSandboxStats(t.Context(), &cri.PodSandboxStatsRequest{PodSandboxId: pod})
	must(t, err)
	if got := r.GetStats().GetLinux(); len(got.GetContainers()) != 1 || got.GetCpu().GetUsageCoreNanoSeconds().GetValue() < last {
		t.Errorf("the pod's total is %d, its container's %d", got.GetCpu().GetUsageCoreNanoSeconds().GetValue(), last)
	}
	n.remove(pod)
	n.same()
}

// TestCase78WhichConfigWins has files that are broken, hidden or of another kind beside the good
// one, and asks Status which is used and why others are not.
func TestCase78WhichConfigWins(t *testing.T) {
	l := lab(t)
	dir := filepath.Join(l.Dir, "many.d")
	must(t, l.WriteNetwork(dir))
	for name, text := range map[string]string{
		"00-bad.conflist":       `{"cniVersion": "1.0.0", "name": "bad", "plugins": [`,
		"01-absent.conflist":    `{"cniVersion": "1.0.0", "name": "absent", "plugins": [{"type": "no-such-plugin"}]}`,
		"02-other.conf.bak":     `{"cniVersion": "1.0.0", "name": "backup", "type": "bridge"}`,
		".03-hidden.conflist":   `{"cniVersion": "1.0.0", "name": "hidden", "plugins": [{"type": "bridge"}]}`,
		"20-second.conf":        `{"cniVersion": "1.0.0", "name": "second", "type": "bridge"}`,
		"30-third.json":         `{"cniVersion": "1.0.0", "name": "third", "type": "bridge"}`,
		"10-lab.conflist.orig~": `{`,
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	n := newNode(t, options{Options: harness.Options{ConfDir: dir}})
	r, err := n.client.Status(t.Context(), &cri.StatusRequest{Verbose: true})
	must(t, err)
	text := r.GetInfo()["network"]
	if !json.Valid([]byte(text)) {
		t.Errorf("no JSON: %s", text)
	}
	has(t, "the verbose status", text, `"name":"lab"`, "00-bad.conflist", "no-such-plugin", "20-second.conf")
	misses(t, "the verbose status", text, `"name":"hidden"`, `"name":"second"`)
	log, err := os.ReadFile(n.daemon.Log)
	must(t, err)
	has(t, "the log", string(log), "00-bad.conflist", "10-lab.conflist")
	pod := n.run(n.pod("attached"))
	if ip := n.ip(pod); !strings.HasPrefix(ip, "10.88.") {
		t.Errorf("the address is %s", ip)
	}
	n.remove(pod)
	n.same()
}

// TestCase80Addresses compares a pod's addresses before and after a restart; a pod with the
// node's network has none.
func TestCase80Addresses(t *testing.T) {
	n := newNode(t, options{})
	pod, node := n.run(n.pod("dual")), n.run(hostNetwork(n.pod("node")))
	before := n.podStatus(pod).GetNetwork()
	if !strings.HasPrefix(before.GetIp(), "10.88.") || len(before.GetAdditionalIps()) != 1 || !strings.HasPrefix(before.GetAdditionalIps()[0].GetIp(), "fd88:") {
		t.Errorf("the addresses are %v", before)
	}
	n.restart()
	if after := n.podStatus(pod).GetNetwork(); after.String() != before.String() {
		t.Errorf("after the restart they are %v, were %v", after, before)
	}
	if got := n.podStatus(node).GetNetwork(); got.GetIp() != "" || len(got.GetAdditionalIps()) != 0 {
		t.Errorf("with the node's network they are %v", got)
	}
	n.remove(pod)
	n.remove(node)
	n.same()
}

// TestCase79HostPorts runs a pod with the same ports of the node again and again; with the node's
// network they mean nothing.
func TestCase79HostPorts(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("published")
	cfg.PortMappings = []*cri.PortMapping{
		{ContainerPort: 80, HostPort: 18090}, {ContainerPort: 80, HostPort: 18090, Protocol: cri.Protocol_UDP},
		{ContainerPort: 80, HostPort: 18091, HostIp: "127.0.0.1"},
	}
	const one, other = "http://127.0.0.1:18090/index.html", "http://127.0.0.1:18091/index.html"
	for range 3 {
		pod := n.run(cfg)
		n.started(pod, cfg, n.ctr("c", "httpd", "-f", "-p", "80", "-h", "/www"))
		for _, address := range []string{one, other} {
			waitFor(t, "an answer at "+address, func() bool {
				text, err := get(address)
				return err == nil && strings.Contains(text, "hello")
			})
		}
		n.remove(pod)
		n.same() // no rule is left
	}
	cfg = hostNetwork(cfg)
	pod := n.run(cfg)
	if text, err := get(one); err == nil {
		t.Errorf("with the node's network the port says %q", text)
	}
	n.remove(pod)
	n.same()
}
