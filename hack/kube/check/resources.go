// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
)

var resources = []check{
	{name: "Limits: in the container's cgroup files", run: limited},
	{name: "Memory limit: OOMKilled", run: oomKilled},
	{name: "Pod-level resources: in the pod's cgroup", run: podLevel},
	{name: "cgroup hierarchy: a pod's by its QoS class, and gone with it", run: cgroupHierarchy},
	{name: "oom_score_adj: by QoS class", run: oomScore},
}

// demand sets requests and limits of a container.
func demand(c *core.Container, requests, limits core.ResourceList) {
	c.Resources = core.ResourceRequirements{Requests: requests, Limits: limits}
}

// expect are the limits of a container; shares do not count where they are given in another unit.
func (l limits) expect(want limits) error {
	if unified() {
		l.shares = want.shares
	}
	return equal("limits", l, want)
}

func limited(ctx context.Context, e *env) error {
	p := shell("limited", inside)
	demand(first(p), amounts("cpu", "100m", "memory", "32Mi"), amounts("cpu", "250m", "memory", "64Mi"))
	out, err := e.run(ctx, p)
	if err != nil {
		return err
	}
	got, err := parsed(out)
	if err != nil {
		return err
	}
	return got.expect(limits{memory: 64 << 20, quota: 250, shares: 102})
}

func oomKilled(ctx context.Context, e *env) error {
	p := shell("greedy", "exec dd if=/dev/zero of=/dev/null bs=200M count=1")
	demand(first(p), nil, amounts("memory", "32Mi"))
	if err := e.create(ctx, p); err != nil {
		return err
	}
	last, err := e.ended(ctx, p.Name)
	if err != nil {
		return err
	}
	t := terminated(last, mainName)
	return errors.Join(equal("reason", t.Reason, "OOMKilled"), equal("exit code", t.ExitCode, 137))
}

func podLevel(ctx context.Context, e *env) error {
	p := shell("shared", forever)
	p.Spec.NodeName = e.node().Name
	p.Spec.Resources = &core.ResourceRequirements{
		Requests: amounts("cpu", "100m", "memory", "32Mi"), Limits: amounts("cpu", "300m", "memory", "96Mi"),
	}
	p.Spec.Containers = append(p.Spec.Containers, container("second", forever))
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	path, err := e.podCgroup(string(pod.UID))
	if err != nil {
		return err
	}
	got, err := e.limitsOf(path)
	if err != nil {
		return err
	}
	return got.expect(limits{memory: 96 << 20, quota: 300, shares: 102})
}

func cgroupHierarchy(ctx context.Context, e *env) error {
	for name, set := range map[core.PodQOSClass]func(c *core.Container){
		core.PodQOSBestEffort: func(*core.Container) {},
		core.PodQOSBurstable:  func(c *core.Container) { demand(c, amounts("cpu", "10m", "memory", "16Mi"), nil) },
		core.PodQOSGuaranteed: func(c *core.Container) { demand(c, nil, amounts("cpu", "50m", "memory", "32Mi")) },
	} {
		p := shell(strings.ToLower(string(name)), forever)
		p.Spec.NodeName = e.node().Name
		set(first(p))
		if err := e.placed(ctx, p, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// placed starts a pod, looks where its cgroup is, and that it goes with the pod.
func (e *env) placed(ctx context.Context, p *core.Pod, class core.PodQOSClass) error {
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	path, err := e.cgroupOf(status(pod, mainName))
	if err != nil {
		return err
	}
	below := map[core.PodQOSClass]string{
		core.PodQOSBestEffort: "/kubepods/besteffort/", core.PodQOSBurstable: "/kubepods/burstable/", core.PodQOSGuaranteed: "/kubepods/",
	}
	_, id, _ := strings.Cut(status(pod, mainName).ContainerID, "://")
	want := below[class] + "pod" + string(pod.UID) + "/" + id
	if err := errors.Join(equal("class", pod.Status.QOSClass, class), equal("cgroup", path, want)); err != nil {
		return err
	}
	if err := e.delete(ctx, p.Name); err != nil {
		return err
	}
	if _, err := e.gonePod(ctx, p.Name); err != nil {
		return err
	}
	return eventually(ctx, 100*time.Millisecond, func(context.Context) error {
		path, err := e.podCgroup(string(pod.UID))
		return errors.Join(err, equal("cgroup of the pod that has gone", path, ""))
	})
}

func oomScore(ctx context.Context, e *env) error {
	const script = "cat /proc/self/oom_score_adj"
	besteffort, burstable, guaranteed := shell("besteffort", script), shell("burstable", script), shell("guaranteed", script)
	demand(first(burstable), amounts("memory", "64Mi"), nil)
	demand(first(guaranteed), nil, amounts("cpu", "50m", "memory", "32Mi"))
	least, err := leastScore()
	if err != nil {
		return err
	}
	if err := errors.Join(e.prints(ctx, besteffort, "1000"), e.prints(ctx, guaranteed, strconv.Itoa(max(-997, least)))); err != nil {
		return err
	}
	out, err := e.run(ctx, burstable)
	if err != nil {
		return err
	}
	score, err := strconv.Atoi(strings.TrimSpace(out))
	if err == nil && (score < max(2, least) || score > 999) {
		err = fmt.Errorf("score of a burstable pod: %d", score)
	}
	return err
}

// leastScore is the lowest oom_score_adj that this machine lets a process have: one without
// CAP_SYS_RESOURCE cannot go below what it has.
func leastScore() (int, error) {
	const resourceBit = 24
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(raw), "CapEff:")
	word, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	set, err := strconv.ParseUint(word, 16, 64)
	if err != nil {
		return 0, err
	}
	if set&(1<<resourceBit) != 0 {
		return -1000, nil
	}
	raw, err = os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}
