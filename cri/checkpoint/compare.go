// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Compatible tells whether a dump of a container that ran with was can be restored into
// one made as is: the process goes on as it was, so what the request says of it, and of
// what it has open, must be as it was too. The error, of class
// errdefs.ErrInvalidArgument, names the first difference.
func Compatible(was, is *specs.Spec) error {
	a, b := traitsOf(was), traitsOf(is)
	for i := range a {
		if !reflect.DeepEqual(a[i].value, b[i].value) {
			return fmt.Errorf("%s is %s, and was %s: %w", a[i].name, shown(b[i].value), shown(a[i].value), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// trait is something of a container that its dump has for good.
type trait struct {
	name  string
	value any
}

func traitsOf(s *specs.Spec) []trait {
	process, linux := cmp.Or(s.Process, &specs.Process{}), cmp.Or(s.Linux, &specs.Linux{})
	capabilities := cmp.Or(process.Capabilities, &specs.LinuxCapabilities{})
	mounts := make([]string, 0, len(s.Mounts))
	for _, m := range s.Mounts {
		mounts = append(mounts, m.Destination)
	}
	namespaces := make([]string, 0, len(linux.Namespaces))
	for _, n := range linux.Namespaces {
		namespaces = append(namespaces, string(n.Type))
	}
	return []trait{
		{"its command", set(process.Args, false)},
		{"its working directory", process.Cwd},
		{"its environment", environment(process.Env)},
		{"its user", [2]uint32{process.User.UID, process.User.GID}},
		{"its supplementary groups", set(process.User.AdditionalGids, true)},
		{"its terminal", process.Terminal},
		{"no_new_privs", process.NoNewPrivileges},
		{"its AppArmor profile", process.ApparmorProfile},
		{"its SELinux label", process.SelinuxLabel},
		{"its bounding capabilities", set(capabilities.Bounding, true)},
		{"its effective capabilities", set(capabilities.Effective, true)},
		{"its permitted capabilities", set(capabilities.Permitted, true)},
		{"its ambient capabilities", set(capabilities.Ambient, true)},
		{"its seccomp profile", seccomp(linux.Seccomp)},
		{"the list of its mounts", set(mounts, true)},
		{"the list of its namespaces", set(namespaces, true)},
	}
}

// shown is a value for a message.
func shown(v any) string {
	const most = 200
	text := fmt.Sprintf("%+v", v)
	return text[:min(len(text), most)]
}

// environment is without the name of the host, which is the pod's and may change.
func environment(env []string) []string {
	return slices.DeleteFunc(set(env, true), func(e string) bool { return strings.HasPrefix(e, "HOSTNAME=") })
}

// set is a copy without a difference between empty and nil, sorted if the order says nothing.
func set[T cmp.Ordered](list []T, sort bool) []T {
	out := append([]T{}, list...)
	if sort {
		slices.Sort(out)
	}
	return out
}

// seccomp is the profile by value.
func seccomp(p *specs.LinuxSeccomp) specs.LinuxSeccomp {
	if p == nil {
		return specs.LinuxSeccomp{}
	}
	return *p
}
