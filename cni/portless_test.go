// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"fmt"
	"testing"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

// TestPortmapOnlyForPorts counts the calls of portmap, which is a fake of that name.
func TestPortmapOnlyForPorts(t *testing.T) {
	ports := []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
	for name, c := range map[string]struct {
		portmap string // its part of the list
		ports   []cni.PortMapping
		want    string
	}{
		"no ports":              {`"capabilities":{"portMappings":true}`, nil, ""},
		"ports":                 {`"capabilities":{"portMappings":true}`, ports, "ADD DEL"},
		"ports of its own":      {`"capabilities":{"portMappings":true},"runtimeConfig":{"portMappings":[]}`, nil, "ADD DEL"},
		"not told of any":       {`"capabilities":{"portMappings":false}`, nil, "ADD DEL"},
		"some other plugin now": {`"capabilities":{"bandwidth":true}`, nil, "ADD DEL"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			first, portmap := cnitest.NewFake(t, l.bin, "fake"), cnitest.NewFake(t, l.bin, "portmap")
			l.write("10-a.conflist", fmt.Sprintf(`{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"fake"},{"type":"portmap",%s}]}`, c.portmap))
			n := l.net()
			res, err := n.Attach(t.Context(), cni.Attachment{ID: "p1", PodName: "web", PortMappings: c.ports})
			if err != nil {
				t.Fatal(err)
			}
			if len(res.IPs) != 1 {
				t.Errorf("addresses %v, want the first plugin's", res.IPs)
			}
			if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: res.Saved}); err != nil {
				t.Fatal(err)
			}
			if got := portmap.Verbs(t); got != c.want {
				t.Errorf("portmap: %q, want %q", got, c.want)
			}
			if got := first.Verbs(t); got != "ADD DEL" {
				t.Errorf("the first plugin: %q", got)
			}
		})
	}
}

// TestPortmapAlone: a list of nothing else is left as it is.
func TestPortmapAlone(t *testing.T) {
	l := newLab(t)
	portmap := cnitest.NewFake(t, l.bin, "portmap")
	l.write("10-a.conflist", `{"name":"a","cniVersion":"1.0.0","plugins":[{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	if _, err := l.net().Attach(t.Context(), cni.Attachment{ID: "p1", PodName: "web"}); err != nil {
		t.Fatal(err)
	}
	if got := portmap.Verbs(t); got != "ADD" {
		t.Errorf("calls %q", got)
	}
}
