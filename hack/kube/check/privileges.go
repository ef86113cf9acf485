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

var privileges = []check{
	{name: "sysctls: of the pod only", run: sysctls},
	{name: "sysctls: an unsafe one that is not allowed is refused", run: unsafeSysctl},
	{name: "readOnlyRootFilesystem: writes fail but for volumes", run: readOnlyRoot},
	{name: "Capabilities: the default set, added, dropped", run: capabilities},
	{name: "seccomp RuntimeDefault: a filter", run: seccompDefault},
	{name: "seccomp Unconfined: no filter", run: seccompUnconfined},
	{name: "seccomp Localhost: the node's profile denies a call", run: seccompLocalhost},
	{name: "allowPrivilegeEscalation: both ways, with a setuid program", run: escalation},
	{name: "privileged: all capabilities, the node's devices, mounts", run: privileged},
}

func sysctls(ctx context.Context, e *env) error {
	const script = "cat /proc/sys/net/ipv4/ip_local_port_range /proc/sys/kernel/shm_rmid_forced | tr '\\t' ' '"
	p := shell("set", script)
	podSecured(p).Sysctls = []core.Sysctl{
		{Name: "net.ipv4.ip_local_port_range", Value: "40000 40100"}, {Name: "kernel.shm_rmid_forced", Value: "1"},
	}
	return errors.Join(e.prints(ctx, p, "40000 40100\n1"), e.prints(ctx, shell("unset", script), "32768 60999\n0"))
}

func unsafeSysctl(ctx context.Context, e *env) error {
	p := shell("refused", "echo never")
	p.Spec.NodeName = e.node().Name
	podSecured(p).Sysctls = []core.Sysctl{{Name: "net.ipv4.conf.all.accept_redirects", Value: "0"}}
	if err := e.create(ctx, p); err != nil {
		return err
	}
	last, err := e.ended(ctx, p.Name)
	return errors.Join(err, equal("reason", last.Status.Reason, "SysctlForbidden"))
}

func readOnlyRoot(ctx context.Context, e *env) error {
	p := shell("readonly", `
		touch /file 2>&1 | grep -o 'Read-only file system'
		touch /data/file && echo volume
		touch /dev/shm/file && echo shm`)
	secured(p).ReadOnlyRootFilesystem = ptr.To(true)
	volume(p, emptyDir(), core.VolumeMount{MountPath: "/data"})
	return e.prints(ctx, p, "Read-only file system\nvolume\nshm")
}

// statusOf prints fields of /proc/self/status, in one line.
func statusOf(fields string) string {
	return fmt.Sprintf(`for f in %s; do grep "^$f:" /proc/self/status | cut -f 2; done | tr '\n' ' '`, fields)
}

func capabilities(ctx context.Context, e *env) error {
	script := statusOf("CapEff CapBnd CapPrm")
	plain := shell("plain", script)
	changed := shell("changed", script)
	secured(changed).Capabilities = &core.Capabilities{Add: []core.Capability{"NET_ADMIN", "SYS_TIME"}, Drop: []core.Capability{"MKNOD", "KILL"}}
	one := shell("one", script)
	secured(one).Capabilities = &core.Capabilities{Add: []core.Capability{"NET_BIND_SERVICE"}, Drop: []core.Capability{"ALL"}}
	user := shell("user", script)
	secured(user).RunAsUser = ptr.To[int64](1000)
	// The set that containers have had since Docker's first days.
	const usual = uint64(0xa80425fb)
	const kill, netAdmin, sysTime, mknod, bind = 1 << 5, 1 << 12, 1 << 25, 1 << 27, 1 << 10
	three := func(eff, bnd, prm uint64) string { return fmt.Sprintf("%016x %016x %016x", eff, bnd, prm) }
	other := usual&^(kill|mknod) | netAdmin | sysTime
	return errors.Join(
		e.prints(ctx, plain, three(usual, usual, usual)),
		e.prints(ctx, changed, three(other, other, other)),
		e.prints(ctx, one, three(bind, bind, bind)),
		e.prints(ctx, user, three(0, usual, 0)))
}

// profiled is a pod with a seccomp profile.
func profiled(name, script string, profile core.SeccompProfile) *core.Pod {
	p := shell(name, script)
	podSecured(p).SeccompProfile = &profile
	return p
}

func seccompDefault(ctx context.Context, e *env) error {
	// A mode of 2 is a filter; it denies this call even to a process with all capabilities.
	script := statusOf("Seccomp") + "; unshare -U true 2>&1 | grep -o 'Operation not permitted'"
	return e.prints(ctx, profiled("filtered", script, core.SeccompProfile{Type: core.SeccompProfileTypeRuntimeDefault}), "2 Operation not permitted")
}

func seccompUnconfined(ctx context.Context, e *env) error {
	return errors.Join(
		e.prints(ctx, profiled("unfiltered", statusOf("Seccomp"), core.SeccompProfile{Type: core.SeccompProfileTypeUnconfined}), "0"),
		e.prints(ctx, shell("default", statusOf("Seccomp")), "0"))
}

const denyMkdir = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`

func seccompLocalhost(ctx context.Context, e *env) error {
	file := e.ns + ".json"
	if _, err := e.onNode(ctx, e.node(), fmt.Sprintf("mkdir -p /var/lib/kubelet/seccomp; echo '%s' > /var/lib/kubelet/seccomp/%s", denyMkdir, file)); err != nil {
		return err
	}
	e.later(func(ctx context.Context) error {
		_, err := e.onNode(ctx, e.node(), "rm /var/lib/kubelet/seccomp/"+file)
		return err
	})
	script := statusOf("Seccomp") + "; mkdir /tmp/dir 2>&1 | grep -o 'Operation not permitted'; touch /tmp/file && echo file"
	good := profiled("denied", script, core.SeccompProfile{Type: core.SeccompProfileTypeLocalhost, LocalhostProfile: &file})
	bad := profiled("missing", "echo never", core.SeccompProfile{Type: core.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("no-such.json")})
	good.Spec.NodeName, bad.Spec.NodeName = e.node().Name, e.node().Name
	return errors.Join(
		e.prints(ctx, good, "2 Operation not permitted\nfile"),
		e.notCreated(ctx, bad, "CreateContainerError", "no-such.json"))
}

func escalation(ctx context.Context, e *env) error {
	// A setuid program of root that prints its effective user.
	try := func(name string, allow bool) *core.Pod {
		p := shell(name, statusOf("NoNewPrivs")+"; /bin/nnp")
		first(p).Image = "registry.k8s.io/e2e-test-images/nonewprivs:1.3"
		secured(p).RunAsUser, secured(p).AllowPrivilegeEscalation = ptr.To[int64](1000), &allow
		return p
	}
	return errors.Join(
		e.prints(ctx, try("allowed", true), "0 Effective uid: 0"),
		e.prints(ctx, try("denied", false), "1 Effective uid: 1000"))
}

func privileged(ctx context.Context, e *env) error {
	script := statusOf("CapEff NoNewPrivs Seccomp") + `
		mkdir /tmp/mount && mount -t tmpfs none /tmp/mount && umount /tmp/mount && echo mounted
		[ -e /dev/kmsg ] && echo devices
		grep -c ' /proc/' /proc/self/mounts || true
		touch /sys/fs/cgroup/memory/x 2>&1 | grep -c 'Read-only' || true`
	plain := shell("plain", "[ -e /dev/kmsg ] || echo none; mount -t tmpfs none /tmp 2>&1 | grep -o 'permission denied'")
	p := shell("privileged", script)
	secured(p).Privileged = ptr.To(true)
	p.Spec.NodeName = e.node().Name
	all, err := e.onNode(ctx, e.node(), statusOf("CapBnd"))
	if err != nil {
		return err
	}
	return errors.Join(
		e.prints(ctx, p, strings.TrimSpace(all)+" 0 0 mounted\ndevices\n0\n0"),
		e.prints(ctx, plain, "none\npermission denied"))
}
