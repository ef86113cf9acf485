// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

// FuzzConfig checks arbitrary pods: what passes gives files, sysctls and a bandwidth that say
// what was asked for and no more.
func FuzzConfig(f *testing.F) {
	for _, c := range []*runtime.PodSandboxConfig{
		config(),
		config(hostname("h"), dns(&runtime.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}})),
		config(dns(&runtime.DNSConfig{Servers: []string{"1\nnameserver 2"}}), sysctl("net.ipv4.ip_forward", "1\nx")),
		config(userNS(own, ids(0, 65536, 65536)), sysctl("net.ipv4.ping_group_range", "0 9")),
		{Annotations: map[string]string{"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "-1"}},
		{PortMappings: []*runtime.PortMapping{{HostPort: 80, ContainerPort: 80, HostIp: "::"}}},
	} {
		raw, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := &runtime.PodSandboxConfig{}
		if proto.Unmarshal(raw, c) != nil || pod.Validate(c) != nil {
			return
		}
		if text, ok := pod.ResolvConf(c); ok {
			checkResolvConf(t, c.GetDnsConfig(), text)
		}
		if name, err := pod.Hostname(c); err == nil && strings.ContainsAny(name, "\n\r\x00") {
			t.Errorf("the host name is %q", name)
		}
		list, err := pod.Sysctls(c, steps.Config{EnableUnprivilegedPorts: true, EnableUnprivilegedICMP: true})
		if err != nil {
			return
		}
		for _, s := range list {
			if strings.Contains(s.Name, "..") || strings.ContainsAny(s.Value, "\n\x00") {
				t.Errorf("sysctl %q = %q", s.Name, s.Value)
			}
		}
		_, _ = pod.Bandwidth(c) // it was valid, and must not panic
	})
}

// checkResolvConf looks for lines that nobody asked for.
func checkResolvConf(t *testing.T, d *runtime.DNSConfig, text string) {
	t.Helper()
	want := len(d.GetServers()) + min(1, len(d.GetSearches())) + min(1, len(d.GetOptions()))
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != want {
		t.Errorf("%d lines for %v: %q", len(lines), d, text)
	}
	for _, line := range lines {
		keyword, value, _ := strings.Cut(line, " ")
		if keyword == "nameserver" && !slices.Contains(d.GetServers(), value) {
			t.Errorf("name server %q is not one of %q", value, d.GetServers())
		}
	}
}
