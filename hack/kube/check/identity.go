// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var identity = []check{
	{name: "hostname and subdomain: in the kernel and in /etc/hosts", run: hostname},
	{name: "hostnameOverride: another host name than the pod's", run: hostnameOverride},
	{name: "dnsConfig: /etc/resolv.conf as asked for", run: dnsConfig},
	{name: "hostAliases: lines in /etc/hosts", run: hostAliases},
}

func hostname(ctx context.Context, e *env) error {
	p := shell("named", "hostname; cat /proc/sys/kernel/hostname /etc/hostname; grep -w box /etc/hosts")
	p.Spec.Hostname, p.Spec.Subdomain = "box", "sub"
	out, err := e.run(ctx, p)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 4 {
		return fmt.Errorf("four lines wanted:\n%s", out)
	}
	if err := equal("names", strings.Join(lines[:3], " "), "box box box"); err != nil {
		return err
	}
	return contains("/etc/hosts", lines[3], "box.sub."+e.ns+".svc.")
}

func hostnameOverride(ctx context.Context, e *env) error {
	p := shell("named", "hostname; cat /etc/hostname; echo $HOSTNAME")
	p.Spec.HostnameOverride = ptr.To("other.example.org")
	return e.prints(ctx, p, "other.example.org\nother.example.org\nother.example.org")
}

func dnsConfig(ctx context.Context, e *env) error {
	p := shell("resolving", "cat /etc/resolv.conf")
	p.Spec.DNSPolicy = core.DNSNone
	p.Spec.DNSConfig = &core.PodDNSConfig{
		Nameservers: []string{"192.0.2.1", "2001:db8::1"},
		Searches:    []string{"one.example", "two.example"},
		Options:     []core.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("3")}, {Name: "edns0"}},
	}
	out, err := e.run(ctx, p)
	if err != nil {
		return err
	}
	return contains("/etc/resolv.conf", out, "nameserver 192.0.2.1\n", "nameserver 2001:db8::1\n", "search one.example two.example\n", "options ", "ndots:3", "edns0")
}

func hostAliases(ctx context.Context, e *env) error {
	p := shell("aliased", "cat /etc/hosts; ping -c 1 -W 5 my.example > /dev/null && echo reached")
	p.Spec.HostAliases = []core.HostAlias{{IP: "127.0.0.1", Hostnames: []string{"my.example", "mine.example"}}}
	out, err := e.run(ctx, p)
	if err != nil {
		return err
	}
	return contains("what it printed", out, "127.0.0.1\tmy.example\tmine.example\n", "reached")
}
