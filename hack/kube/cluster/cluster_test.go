// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"testing"
)

// TestPKI lets the programs' own library judge the certificates.
func TestPKI(t *testing.T) {
	p, err := newPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := holder{user: "system:node:node1", groups: []string{"system:nodes"}, names: []string{"node1"}, ips: []string{"10.80.0.11"}}
	if _, err := p.kubeconfig("node1", h); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(p.crt("node1"), p.keyOf("node1"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(p.crt("ca"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("no authority: %v", err)
	}
	for _, c := range []struct {
		name  string
		usage x509.ExtKeyUsage
		ok    bool
	}{
		{"node1", x509.ExtKeyUsageServerAuth, true},
		{"10.80.0.11", x509.ExtKeyUsageServerAuth, true},
		{"", x509.ExtKeyUsageClientAuth, true},
		{"node2", x509.ExtKeyUsageServerAuth, false},
	} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: c.name, KeyUsages: []x509.ExtKeyUsage{c.usage}})
		if (err == nil) != c.ok {
			t.Errorf("for %q: %v, expected %v", c.name, err, c.ok)
		}
	}
	if s := pair.Leaf.Subject; s.CommonName != h.user || len(s.Organization) != 1 || s.Organization[0] != h.groups[0] {
		t.Errorf("the certificate is for %s", s)
	}
}

// TestClientOnly: who serves nothing has no certificate to serve with.
func TestClientOnly(t *testing.T) {
	p, err := newPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.issue("proxy", holder{user: "system:kube-proxy"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(p.crt("proxy"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("the certificate may be used for %v", cert.ExtKeyUsage)
	}
}

// TestRoot maps paths of a node to those of the laboratory.
func TestRoot(t *testing.T) {
	n := &Node{Dir: "/lab/node1"}
	for path, want := range map[string]string{
		"/run/sandflow/sandflow.sock":     "/lab/node1/run/sandflow/sandflow.sock",
		"/etc/kubernetes/manifests":       "/lab/node1/etc/kubernetes/manifests",
		"/var/lib/kubelet":                "/lab/node1/lib/kubelet",
		"/var/log/pods":                   "/lab/node1/log/pods",
		"/runner":                         "/runner",
		"/usr/bin/env":                    "/usr/bin/env",
		"/var/lib/../../run/sandflow/any": "/lab/node1/run/sandflow/any",
	} {
		if got := n.Root(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// TestExpected tells what comes with pods and stays from what is left of them.
func TestExpected(t *testing.T) {
	for line, want := range map[string]bool{
		"+ cgroups: /sys/fs/cgroup/pids/lab/node1/kubepods/besteffort":          true,
		"+ cgroups: /sys/fs/cgroup/pids/lab/node1/kubepods/besteffort/pod12ab":  false,
		"+ unix sockets: /var/lib/kubelet/pod-resources/123":                    true,
		"+ unix sockets: /run/sandflow/pods/ab/shim.sock":                       false,
		"+ snapshot directories: /var/lib/sandflow/containerd/x/snapshots/7":    true,
		"+ snapshots: 0130f565b9cfe36b":                                         false,
		"+ firewall rules: jump CNI-DN-0123456789abcdef":                        false,
		"+ mounts: /var/lib/kubelet/pods/x/volumes/kubernetes.io~projected/abc": false,
	} {
		if got := expected(line); got != want {
			t.Errorf("%s: got %v", line, got)
		}
	}
}

// TestGates: the one that is on here by default can be turned off, and is not the peer's.
func TestGates(t *testing.T) {
	for _, c := range []struct {
		o           Options
		given, want bool
	}{
		{Options{}, true, true},
		{Options{Runtime: Upstream}, false, false},
		{Options{Plain: true}, false, false},
		{Options{FeatureGates: map[string]bool{statsFromCRI: false}}, true, false},
	} {
		on, given := c.o.withDefaults().FeatureGates[statsFromCRI]
		if on != c.want || given != c.given {
			t.Errorf("%+v: got %v, given %v", c.o, on, given)
		}
	}
}
