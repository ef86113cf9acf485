// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"
	"strings"

	capability "github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	capPrefix = "CAP_"
	allCaps   = "ALL"
)

// defaultCapabilities are those of an unprivileged container, as with other runtimes.
var defaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// setCapabilities applies the request. Inheritable stays empty except for ambient
// ones: a filled set would let file capabilities raise a non-root process.
func (b *build) setCapabilities() error {
	set, ambient := b.host.caps, []string(nil)
	if !b.sec.GetPrivileged() {
		var err error
		if set, ambient, err = capabilities(b.sec.GetCapabilities(), b.host.caps); err != nil {
			return err
		}
	}
	b.spec.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: set, Effective: set, Permitted: set, Inheritable: ambient, Ambient: ambient,
	}
	return nil
}

// capabilities gives the set asked for, sorted. have are those of this node: ALL
// means these, and defaults that it lacks are left out, but one asked for by name
// that it lacks is refused, since the process would not get it. What is added by
// name stays although ALL is dropped; what is dropped by name goes although ALL is added.
func capabilities(c *runtime.Capability, have []string) (set, ambient []string, err error) {
	add, addAll := capNames(c.GetAddCapabilities())
	drop, dropAll := capNames(c.GetDropCapabilities())
	ambient, ambientAll := capNames(c.GetAddAmbientCapabilities())
	for _, name := range slices.Concat(add, ambient) {
		if !slices.Contains(have, name) {
			return nil, nil, fmt.Errorf("capability %s is not available on this node: %w", name, errdefs.ErrFailedPrecondition)
		}
	}
	switch {
	case dropAll:
	case addAll:
		set = slices.Clone(have)
	default:
		set = intersect(defaultCapabilities, have)
	}
	if ambientAll {
		ambient = slices.Clone(have)
	}
	set, ambient = subtract(slices.Concat(set, add, ambient), drop), subtract(ambient, drop)
	return set, ambient, nil
}

// capNames brings names into the form CAP_X; all tells whether ALL is among them.
func capNames(names []string) (known []string, all bool) {
	for _, n := range names {
		n = strings.ToUpper(n)
		if n == allCaps || n == capPrefix+allCaps {
			all = true
			continue
		}
		known = append(known, capPrefix+strings.TrimPrefix(n, capPrefix))
	}
	return known, all
}

func intersect(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

// subtract gives a without b, sorted, each once; nil if nothing is left.
func subtract(a, b []string) []string {
	left := slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
	slices.Sort(left)
	left = slices.Compact(left)
	if len(left) == 0 {
		return nil
	}
	return left
}

func validateCapabilities(c *runtime.Capability) error {
	for field, names := range map[string][]string{
		"add_capabilities": c.GetAddCapabilities(), "drop_capabilities": c.GetDropCapabilities(),
		"add_ambient_capabilities": c.GetAddAmbientCapabilities(),
	} {
		known, _ := capNames(names)
		for _, n := range known {
			if !slices.Contains(capability.Known(), n) {
				return invalid("security_context.capabilities."+field, "%q is unknown", n)
			}
		}
	}
	return nil
}
