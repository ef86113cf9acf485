// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var namespaces = []check{
	{name: "Namespaces: what containers of a pod share, and what not", run: ownNamespaces},
	{name: "hostPID: the node's processes", run: hostPID},
	{name: "hostIPC: the node's shared memory", run: hostIPC},
	{name: "shareProcessNamespace: containers see each other's processes", run: sharedPID},
	{name: "hostUsers: false: root in the pod is not root on the node", run: userNamespace},
	{name: "procMount: Unmasked in a user namespace, else masked", run: procMount},
}

// links prints the IDs of a process's namespaces, in one line.
const links = `for n in net ipc uts pid mnt user cgroup; do printf '%s ' "$(readlink /proc/self/ns/$n)"; done; echo`

// byName makes a map of what links printed.
func byName(line string) map[string]string {
	m := map[string]string{}
	for _, word := range strings.Fields(line) {
		name, id, _ := strings.Cut(word, ":")
		m[name] = id
	}
	return m
}

func ownNamespaces(ctx context.Context, e *env) error {
	p := shell("pair", links+"; "+forever)
	p.Spec.NodeName = e.node().Name
	p.Spec.Containers = append(p.Spec.Containers, container("second", links+"; "+forever))
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	var of [3]map[string]string
	for i, name := range []string{mainName, "second"} {
		err := e.heard(ctx, p.Name, name, func(text string) error {
			of[i] = byName(text)
			return equal("namespaces", len(of[i]), 7)
		})
		if err != nil {
			return err
		}
	}
	out, err := e.onNode(ctx, e.node(), links)
	if err != nil {
		return err
	}
	of[2] = byName(out)
	var errs []error
	for _, name := range []string{"net", "ipc", "uts"} {
		if of[0][name] != of[1][name] || of[0][name] == of[2][name] {
			errs = append(errs, fmt.Errorf("%s should be the pod's own: %v", name, of))
		}
	}
	for _, name := range []string{"pid", "mnt"} {
		if of[0][name] == of[1][name] || of[0][name] == of[2][name] {
			errs = append(errs, fmt.Errorf("%s should be each container's own: %v", name, of))
		}
	}
	return errors.Join(append(errs, equal("user namespace", of[0]["user"], of[2]["user"]))...)
}

// sharesWithNode runs a pod on the node and compares one of its namespaces with the node's.
func (e *env) sharesWithNode(ctx context.Context, name string, set func(*core.Pod)) error {
	want, err := e.onNode(ctx, e.node(), "readlink /proc/self/ns/"+name)
	if err != nil {
		return err
	}
	p := shell("inside", "readlink /proc/self/ns/"+name)
	p.Spec.NodeName = e.node().Name
	set(p)
	return e.prints(ctx, p, strings.TrimSpace(want))
}

func hostPID(ctx context.Context, e *env) error {
	set := func(p *core.Pod) { p.Spec.HostPID = true }
	if err := e.sharesWithNode(ctx, "pid", set); err != nil {
		return err
	}
	p := shell("looking", "pgrep -x kubelet > /dev/null && echo seen; [ $$ != 1 ] && echo not 1")
	p.Spec.NodeName = e.node().Name
	set(p)
	return e.prints(ctx, p, "seen\nnot 1")
}

func hostIPC(ctx context.Context, e *env) error {
	set := func(p *core.Pod) { p.Spec.HostIPC = true }
	if err := e.sharesWithNode(ctx, "ipc", set); err != nil {
		return err
	}
	mark := "check-" + e.ns
	if _, err := e.onNode(ctx, e.node(), "echo shared > /dev/shm/"+mark); err != nil {
		return err
	}
	e.later(func(ctx context.Context) error {
		_, err := e.onNode(ctx, e.node(), "rm -f /dev/shm/"+mark)
		return err
	})
	p := shell("looking", "cat /dev/shm/"+mark)
	p.Spec.NodeName = e.node().Name
	set(p)
	return e.prints(ctx, p, "shared")
}

func sharedPID(ctx context.Context, e *env) error {
	p := shell("pair", "exec sleep 4321")
	p.Spec.ShareProcessNamespace = ptr.To(true)
	p.Spec.Containers = append(p.Spec.Containers, container("second", forever))
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	// The first process of the pod is nobody's container; it reaps what containers leave.
	out, err := e.kubectl(ctx, "exec", "pair", "-c", "second", "--", "sh", "-ec", `
		pid=$(pgrep -f '^sleep 4321$')
		[ $pid != 1 ] && echo not 1
		(sleep 0.1 &) ; sleep 0.5
		ps | grep -c '[Z]ombie' || true
		kill $pid`)
	if err := errors.Join(err, equal("what the second container saw", out, "not 1\n0\n")); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, "pair", "without its first container", func(p *core.Pod) (bool, error) {
		return terminated(p, mainName).ExitCode != -1, nil
	})
	if err != nil {
		return err
	}
	if status(pod, "second").State.Running == nil {
		return errors.New("the second container ended with the first:\n" + state(pod))
	}
	return equal("exit code of the killed container", terminated(pod, mainName).ExitCode, 143)
}

func userNamespace(ctx context.Context, e *env) error {
	p := shell("mapped", `
		cat /proc/self/uid_map
		id -u
		stat -c %u:%g /config/text /bin/busybox
		touch /data/file && stat -c %u:%g /data/file
		`+forever)
	p.Spec.NodeName = e.node().Name
	p.Spec.HostUsers = ptr.To(false)
	if err := e.configMap(ctx, "config", map[string]string{"text": "x"}); err != nil {
		return err
	}
	volume(p, theConfigMap(), core.VolumeMount{MountPath: "/config"})
	volume(p, emptyDir(), core.VolumeMount{MountPath: "/data"})
	first(p).ReadinessProbe = execProbe("test", "-e", "/data/file")
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	out, err := e.logs(ctx, p.Name, core.PodLogOptions{})
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 5 {
		return fmt.Errorf("five lines wanted:\n%s", out)
	}
	mapping := strings.Fields(lines[0])
	if len(mapping) != 3 || mapping[0] != "0" || mapping[1] == "0" || mapping[2] != "65536" {
		return fmt.Errorf("uid_map: %q", lines[0])
	}
	if err := equal("IDs in the pod", strings.Join(lines[1:], " "), "0 0:0 0:0 0:0"); err != nil {
		return err
	}
	return e.runsAs(ctx, status(pod, mainName), mapping[1])
}

// runsAs looks from the node at the user of a container's processes.
func (e *env) runsAs(ctx context.Context, c *core.ContainerStatus, uid string) error {
	path, err := e.cgroupOf(c)
	if err != nil {
		return err
	}
	// Those of probes come and go.
	out, err := e.onNode(ctx, e.node(), fmt.Sprintf("for p in $(cat %s/%s/%s/cgroup.procs); do stat -c %%u /proc/$p || true; done 2> /dev/null | sort -u",
		hierarchy("memory"), e.node().CgroupRoot, path))
	return errors.Join(err, equal("user on the node", strings.Join(strings.Fields(out), " "), uid))
}

func procMount(ctx context.Context, e *env) error {
	// Masks and read-only parts are mounts on top of /proc.
	const script = `grep -c ' /proc/' /proc/self/mounts || true`
	masked := shell("masked", script)
	out, err := e.run(ctx, masked)
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) == "0" {
		return errors.New("a pod has an unmasked /proc although it did not ask for one")
	}
	p := shell("unmasked", script)
	p.Spec.HostUsers = ptr.To(false)
	secured(p).ProcMount = ptr.To(core.UnmaskedProcMount)
	return e.prints(ctx, p, "0")
}
