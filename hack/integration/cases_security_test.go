// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCase54SysOfPrivileged looks at the mounts of privileged and other containers, in pods
// with a network of their own and with the node's.
func TestCase54SysOfPrivileged(t *testing.T) {
	n := newNode(t, options{})
	const script = `awk '$2 == "/sys" || $2 == "/proc" {split($4, o, ","); print $2, o[1]}' /proc/mounts
mkdir /sys/fs/cgroup/pids/of-mine 2>/dev/null && echo cgroup rw && rmdir /sys/fs/cgroup/pids/of-mine
echo alias > /sys/class/net/lo/ifalias 2>/dev/null && echo sys can be written; echo x > /file 2>/dev/null && echo root can be written; true`
	for _, network := range []string{"pod", "node"} {
		cfg := privileged(n.pod("p-" + network))
		if network == "node" {
			hostNetwork(cfg)
		}
		pod := n.run(cfg)
		for _, p := range []bool{false, true, false} {
			for _, readonly := range []bool{false, true} {
				c := n.ctr("c", "sh", "-c", script)
				c.Linux.SecurityContext.Privileged, c.Linux.SecurityContext.ReadonlyRootfs = p, readonly
				what := fmt.Sprintf("%s network, privileged %v, read-only root %v", network, p, readonly)
				out := n.output(pod, cfg, c)
				if p {
					has(t, what, out, "/proc rw", "/sys rw", "cgroup rw", "sys can be written")
				} else {
					misses(t, what, out, "cgroup rw", "sys can be written")
				}
				if strings.Contains(out, "root can be written") == readonly {
					t.Errorf("%s:\n%s", what, out)
				}
			}
		}
		n.remove(pod)
	}
	plain := n.pod("plain")
	pod := n.run(plain)
	has(t, "an unprivileged pod", n.output(pod, plain, n.ctr("c", "sh", "-c", script)), "/proc rw", "/sys ro")
	n.remove(pod)
	n.same()
}

// TestCase55Capabilities reads the sets of a container's first process and of an exec.
func TestCase55Capabilities(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("caps")
	pod := n.run(cfg)
	const none, netAdmin, netRaw = "0000000000000000", "0000000000001000", "0000000000002000"
	for _, k := range []struct {
		what          string
		caps          *cri.Capability
		user          int64
		inh, bnd, eff string // empty: not looked at
	}{
		{what: "defaults", inh: none},
		{what: "not root", user: 1000, inh: none, eff: none},
		{what: "one only", caps: &cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_ADMIN"}}, inh: none, bnd: netAdmin, eff: netAdmin},
		{what: "with prefix, in lower case", caps: &cri.Capability{DropCapabilities: []string{"all"}, AddCapabilities: []string{"cap_net_admin"}}, inh: none, bnd: netAdmin, eff: netAdmin},
		{what: "drop all", caps: &cri.Capability{DropCapabilities: []string{"ALL"}}, inh: none, bnd: none, eff: none},
		{what: "add all", caps: &cri.Capability{AddCapabilities: []string{"ALL"}}, inh: none},
		{
			what: "ambient", user: 1000, inh: netRaw, bnd: netRaw, eff: netRaw,
			caps: &cri.Capability{DropCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"NET_RAW"}},
		},
	} {
		c := n.ctr("c", "sleep", "1000")
		c.Linux.SecurityContext.Capabilities = k.caps
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: k.user}
		id := n.started(pod, cfg, c)
		for who, path := range map[string]string{"init": "/proc/1/status", "exec": "/proc/self/status"} {
			text := n.exec(id, "cat", path)
			for set, want := range map[string]string{"CapInh": k.inh, "CapBnd": k.bnd, "CapEff": k.eff} {
				if want != "" {
					has(t, k.what+" of "+who, text, set+":\t"+want)
				}
			}
		}
		n.removeContainer(id)
	}
	c := n.ctr("c", "true")
	c.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"NO_SUCH"}}
	n.notCreated(pod, cfg, c, "NO_SUCH")
	n.remove(pod)
	n.same()
}

// TestCase56MaskedPaths reads and writes what is masked and read-only, or should not be.
func TestCase56MaskedPaths(t *testing.T) {
	n := newNode(t, options{})
	cfg := privileged(n.pod("masks"))
	pod := n.run(cfg)
	const script = `[ -s /proc/filesystems ] || cat /proc/filesystems | grep -q . && echo readable
cat /proc/sys/kernel/domainname > /proc/sys/kernel/domainname 2>/dev/null && echo writable; true`
	for _, k := range []struct {
		what               string
		masked, readonly   []string
		privileged         bool
		readable, writable bool
	}{
		{what: "empty lists", readable: true, writable: true},
		{what: "as sent", masked: []string{"/proc/filesystems"}, readonly: []string{"/proc/sys"}},
		{what: "paths that are not there", masked: []string{"/odd/path"}, readonly: []string{"/odd/other"}, readable: true, writable: true},
		{what: "privileged, empty lists", privileged: true, readable: true, writable: true},
		{
			what: "privileged, as sent", privileged: true, masked: []string{"/proc/filesystems"}, readonly: []string{"/proc/sys"},
			readable: true, writable: true,
		},
	} {
		c := n.ctr("c", "sh", "-c", script)
		s := c.Linux.SecurityContext
		s.MaskedPaths, s.ReadonlyPaths, s.Privileged = k.masked, k.readonly, k.privileged
		out := n.output(pod, cfg, c)
		if strings.Contains(out, "readable") != k.readable || strings.Contains(out, "writable") != k.writable {
			t.Errorf("%s: want readable %v, writable %v:\n%s", k.what, k.readable, k.writable, out)
		}
	}
	n.remove(pod)
	n.same()
}

// TestCase57Seccomp reads the mode of a container's first process and of an exec for each
// kind of profile. What is not set is unconfined, as is all that is privileged.
func TestCase57Seccomp(t *testing.T) {
	n := newNode(t, options{})
	good := filepath.Join(t.TempDir(), "good.json")
	must(t, os.WriteFile(good, []byte(`{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod","fchmodat","fchmodat2"],"action":"SCMP_ACT_ERRNO"}]}`), 0o644))
	profile := func(kind cri.SecurityProfile_ProfileType, ref string) *cri.SecurityProfile {
		return &cri.SecurityProfile{ProfileType: kind, LocalhostRef: ref}
	}
	cfg := privileged(n.pod("seccomp"))
	pod := n.run(cfg)
	for _, k := range []struct {
		what    string
		profile *cri.SecurityProfile
		mode    string
	}{
		{"unset", nil, "0"},
		{"RuntimeDefault", profile(cri.SecurityProfile_RuntimeDefault, ""), "2"},
		{"Unconfined", profile(cri.SecurityProfile_Unconfined, ""), "0"},
		{"Localhost", profile(cri.SecurityProfile_Localhost, good), "2"},
	} {
		for _, p := range []bool{false, true} {
			c := n.ctr("c", "sleep", "1000")
			c.Linux.SecurityContext.Seccomp, c.Linux.SecurityContext.Privileged = k.profile, p
			id := n.started(pod, cfg, c)
			mode := "Seccomp:\t" + k.mode
			if p {
				mode = "Seccomp:\t0"
			}
			what := fmt.Sprintf("%s, privileged %v", k.what, p)
			has(t, what+", init", n.exec(id, "cat", "/proc/1/status"), mode)
			has(t, what+", exec", n.exec(id, "cat", "/proc/self/status"), mode)
			if k.what == "Localhost" && !p {
				has(t, what, n.exec(id, "sh", "-c", "chmod 700 /bin 2>&1 || true"), "not permitted")
			}
			n.removeContainer(id)
		}
	}
	for _, ref := range []string{"/no/such/profile.json", "relative.json"} {
		c := n.ctr("c", "true")
		c.Linux.SecurityContext.Seccomp = profile(cri.SecurityProfile_Localhost, ref)
		n.notCreated(pod, cfg, c, ref)
	}
	// This machine may have no AppArmor; then a profile of one's own must not be ignored.
	if _, err := os.Stat("/sys/kernel/security/apparmor"); err != nil {
		c := n.ctr("c", "true")
		c.Linux.SecurityContext.Apparmor = profile(cri.SecurityProfile_Localhost, "mine")
		n.notCreated(pod, cfg, c, "mine")
	}
	n.remove(pod)
	n.same()
}
