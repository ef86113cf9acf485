// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

const node, own = runtime.NamespaceMode_NODE, runtime.NamespaceMode_POD

type change func(*runtime.PodSandboxConfig)

func config(changes ...change) *runtime.PodSandboxConfig {
	c := &runtime.PodSandboxConfig{Linux: &runtime.LinuxPodSandboxConfig{
		Sysctls:         map[string]string{},
		SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: &runtime.NamespaceOption{}},
	}}
	for _, f := range changes {
		f(c)
	}
	return c
}

func ns(c *runtime.PodSandboxConfig) *runtime.NamespaceOption {
	return c.Linux.SecurityContext.NamespaceOptions
}

func hostNetwork(c *runtime.PodSandboxConfig) { ns(c).Network = node }
func hostIPC(c *runtime.PodSandboxConfig)     { ns(c).Ipc = node }

func sysctl(name, value string) change {
	return func(c *runtime.PodSandboxConfig) { c.Linux.Sysctls[name] = value }
}

func hostname(name string) change {
	return func(c *runtime.PodSandboxConfig) { c.Hostname = name }
}

func dns(d *runtime.DNSConfig) change {
	return func(c *runtime.PodSandboxConfig) { c.DnsConfig = d }
}

func userNS(mode runtime.NamespaceMode, maps ...*runtime.IDMapping) change {
	return func(c *runtime.PodSandboxConfig) {
		ns(c).UsernsOptions = &runtime.UserNamespace{Mode: mode, Uids: maps, Gids: maps}
	}
}

func ids(inside, outside, length uint32) *runtime.IDMapping {
	return &runtime.IDMapping{ContainerId: inside, HostId: outside, Length: length}
}

// TestValidate is CASES 68 and 90, and the other things that would fail half-way.
func TestValidate(t *testing.T) {
	long := strings.Repeat("h", 64)
	for name, c := range map[string]struct {
		change []change
		says   string // "" is valid
	}{
		"nothing":                  {nil, ""},
		"hostname of 63":           {[]change{hostname(long[:63])}, ""},
		"hostname of 64":           {[]change{hostname(long)}, ""},
		"hostname of 65":           {[]change{hostname(long + "h")}, "limit is 64"},
		"hostname of 200":          {[]change{hostname(strings.Repeat(long, 4)[:200])}, "200 bytes"},
		"hostname with line break": {[]change{hostname("a\nb")}, "hostname"},
		"long, with host network":  {[]change{hostname(long + "h"), hostNetwork}, "limit is 64"},

		"net sysctl":                   {[]change{sysctl("net.ipv4.ip_forward", "1")}, ""},
		"net sysctl, host network":     {[]change{sysctl("net.ipv4.ip_forward", "1"), hostNetwork}, "node's network"},
		"ipc sysctl":                   {[]change{sysctl("kernel.shm_rmid_forced", "1")}, ""},
		"ipc sysctl, host network":     {[]change{sysctl("kernel.msgmax", "8192"), hostNetwork}, ""},
		"shm, host IPC":                {[]change{sysctl("kernel.shm_rmid_forced", "1"), hostIPC}, "node's IPC"},
		"msg, host IPC":                {[]change{sysctl("kernel.msgmax", "1"), hostIPC}, "node's IPC"},
		"sem, host IPC":                {[]change{sysctl("kernel.sem", "1"), hostIPC}, "node's IPC"},
		"mqueue, host IPC":             {[]change{sysctl("fs.mqueue.msg_max", "1"), hostIPC}, "node's IPC"},
		"domainname":                   {[]change{sysctl("kernel.domainname", "x")}, ""},
		"domainname, host network":     {[]change{sysctl("kernel.domainname", "x"), hostNetwork}, "node's network"},
		"node-wide sysctl":             {[]change{sysctl("kernel.panic", "1")}, "whole node"},
		"node-wide, looks like ipc":    {[]change{sysctl("kernel.semaphore", "1")}, "whole node"},
		"name with ..":                 {[]change{sysctl("net..ipv4", "1")}, "dotted name"},
		"name with a slash":            {[]change{sysctl("net.ipv4/../../kernel/panic", "1")}, "dotted name"},
		"name in slashes":              {[]change{sysctl("net/ipv4/ip_forward", "1")}, "dotted name"},
		"name without a dot":           {[]change{sysctl("net", "1")}, "dotted name"},
		"name with =":                  {[]change{sysctl("net.a=b", "1")}, "dotted name"},
		"name with line break":         {[]change{sysctl("net.ipv4.ip_forward\n", "1")}, "dotted name"},
		"value with line break":        {[]change{sysctl("net.ipv4.ip_forward", "1\nkernel.panic=1")}, "control character"},
		"value with NUL":               {[]change{sysctl("net.ipv4.ip_forward", "1\x00")}, "control character"},
		"value with tabs":              {[]change{sysctl("kernel.sem", "1\t2\t3\t4")}, ""},
		"value for another, literally": {[]change{sysctl("kernel.shm_rmid_forced", "1+kernel.domainname=x")}, ""},

		"dns":               {[]change{dns(&runtime.DNSConfig{Servers: []string{"10.0.0.1"}, Options: []string{"ndots:5"}})}, ""},
		"dns line break":    {[]change{dns(&runtime.DNSConfig{Servers: []string{"10.0.0.1\noptions x"}})}, "DNS server"},
		"dns empty search":  {[]change{dns(&runtime.DNSConfig{Searches: []string{""}})}, "DNS search"},
		"dns blank":         {[]change{dns(&runtime.DNSConfig{Options: []string{"a b"}})}, "DNS option"},
		"userns":            {[]change{userNS(own, ids(0, 100000, 65536))}, ""},
		"userns of node":    {[]change{userNS(node)}, ""},
		"userns odd mode":   {[]change{userNS(runtime.NamespaceMode_TARGET)}, "TARGET"},
		"userns, node+maps": {[]change{userNS(node, ids(0, 1, 1))}, "NODE"},
		"userns unmapped":   {[]change{userNS(own)}, "0 uid and 0 gid"},
		"userns, two maps":  {[]change{userNS(own, ids(0, 1, 1), ids(1, 9, 1))}, "2 uid"},
		"userns, empty map": {[]change{userNS(own, ids(0, 1, 0))}, "empty"},
		"userns, no root":   {[]change{userNS(own, ids(1, 1, 1))}, "root"},
		"userns, too many":  {[]change{userNS(own, ids(0, 1<<31, 1<<31))}, "last id"},
		"port": {[]change{func(c *runtime.PodSandboxConfig) {
			c.PortMappings = []*runtime.PortMapping{{HostPort: 65536}}
		}}, "host port 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			err := pod.Validate(config(c.change...))
			if c.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got %v, want an invalid argument with %q", err, c.says)
			}
		})
	}
	if err := pod.Validate(&runtime.PodSandboxConfig{}); err != nil {
		t.Errorf("empty request: %v", err)
	}
	if err := pod.Validate(nil); err != nil {
		t.Errorf("no request: %v", err)
	}
}

// TestSysctls is the part of CASES 58 that needs no kernel.
func TestSysctls(t *testing.T) {
	both := steps.Config{EnableUnprivilegedPorts: true, EnableUnprivilegedICMP: true}
	u := userNS(own, ids(0, 100000, 65536))
	for name, c := range map[string]struct {
		cfg    steps.Config
		change []change
		want   string
	}{
		"no defaults":       {steps.Config{}, nil, ""},
		"defaults":          {both, nil, "net.ipv4.ip_unprivileged_port_start=0 net.ipv4.ping_group_range=0 2147483647"},
		"host network":      {both, []change{hostNetwork}, ""},
		"the pod's own win": {both, []change{sysctl("net.ipv4.ip_unprivileged_port_start", "9"), sysctl("net.ipv4.ping_group_range", "1 0")}, "net.ipv4.ip_unprivileged_port_start=9 net.ipv4.ping_group_range=1 0"},
		"user namespace":    {both, []change{u, sysctl("net.ipv4.ping_group_range", "5 65535")}, "net.ipv4.ip_unprivileged_port_start=0 net.ipv4.ping_group_range=100005 165535"},
		"nobody, in userns": {both, []change{u, sysctl("net.ipv4.ping_group_range", "1 0")}, "net.ipv4.ip_unprivileged_port_start=0 net.ipv4.ping_group_range=1 0"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := pod.Sysctls(config(c.change...), c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range list {
				got = append(got, s.Name+"="+strings.ReplaceAll(s.Value, "\t", " "))
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("got  %s\nwant %s", s, c.want)
			}
		})
	}
	if _, err := pod.Sysctls(config(u, sysctl("net.ipv4.ping_group_range", "0 65536")), both); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a group that is not mapped: %v", err)
	}
}

func TestResolvConf(t *testing.T) {
	text, ok := pod.ResolvConf(config(dns(&runtime.DNSConfig{
		Servers: []string{"10.0.0.1", "fd00::1"}, Searches: []string{"a.b", "b"}, Options: []string{"ndots:5", "edns0"},
	})))
	if want := "search a.b b\nnameserver 10.0.0.1\nnameserver fd00::1\noptions ndots:5 edns0\n"; !ok || text != want {
		t.Errorf("got %q, want %q", text, want)
	}
	for _, d := range []*runtime.DNSConfig{nil, {}} {
		if text, ok := pod.ResolvConf(config(dns(d))); ok {
			t.Errorf("%v gives %q instead of the node's", d, text)
		}
	}
}

func TestBandwidth(t *testing.T) {
	with := func(key, text string) *runtime.PodSandboxConfig {
		return &runtime.PodSandboxConfig{Annotations: map[string]string{"kubernetes.io/" + key: text}}
	}
	for _, text := range []string{"", "fast", "999", "2P", "-1M"} {
		if err := pod.Validate(with("egress-bandwidth", text)); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if b, err := pod.Bandwidth(nil); b != nil || err != nil {
		t.Errorf("none: %v, %v", b, err)
	}
	b, err := pod.Bandwidth(with("ingress-bandwidth", "1Mi"))
	if err != nil || b.IngressRate != 1<<20 || b.IngressBurst == 0 || b.EgressRate != 0 || b.EgressBurst != 0 {
		t.Errorf("1Mi: %+v, %v", b, err)
	}
}

func TestDir(t *testing.T) {
	c := steps.Config{State: t.TempDir()}
	for _, id := range []string{"", ".", "..", "a/b", "../x", "a\x00"} {
		if _, err := pod.Ensure(c, id, nil); err == nil {
			t.Errorf("id %q was accepted", id)
		}
	}
	dir, err := pod.Ensure(c, "p1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for d, mode := range map[string]os.FileMode{dir: 0o700, filepath.Dir(dir): 0o711} {
		if fi, err := os.Stat(d); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", d, fi.Mode(), err)
		}
	}
	file := filepath.Join(dir, "x")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, left := range []bool{true, false, false} {
		if err := pod.Release(c, "p1"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != left {
			t.Fatalf("directory left: %v", err)
		}
		_ = os.Remove(file)
	}
	if !slices.Equal(dirNames(t, filepath.Dir(dir)), nil) {
		t.Error("something is left")
	}
}

func dirNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
