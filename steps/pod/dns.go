// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ResolvConf is the text of the pod's resolv.conf; ok is false if the request
// says nothing, and the node's is to be copied.
func ResolvConf(cfg *runtime.PodSandboxConfig) (text string, ok bool) {
	d := cfg.GetDnsConfig()
	if len(d.GetServers())+len(d.GetSearches())+len(d.GetOptions()) == 0 {
		return "", false
	}
	var b strings.Builder
	if s := d.GetSearches(); len(s) > 0 {
		b.WriteString("search " + strings.Join(s, " ") + "\n")
	}
	for _, s := range d.GetServers() {
		b.WriteString("nameserver " + s + "\n")
	}
	if o := d.GetOptions(); len(o) > 0 {
		b.WriteString("options " + strings.Join(o, " ") + "\n")
	}
	return b.String(), true
}

func validateDNS(cfg *runtime.PodSandboxConfig) error {
	d := cfg.GetDnsConfig()
	for what, list := range map[string][]string{"server": d.GetServers(), "search domain": d.GetSearches(), "option": d.GetOptions()} {
		for _, s := range list {
			if s == "" || !clean(s) || strings.Contains(s, " ") {
				return invalid("DNS %s %q is empty or contains a blank or a control character", what, s)
			}
		}
	}
	return nil
}
