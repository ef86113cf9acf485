// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func value(n int64) *runtime.Int64Value { return &runtime.Int64Value{Value: n} }

func TestUserOfRequestAndImage(t *testing.T) {
	strict := runtime.SupplementalGroupsPolicy_Strict
	for _, c := range []struct {
		name     string
		image    string
		sec      *runtime.LinuxContainerSecurityContext
		uid, gid uint32
		groups   []uint32
	}{
		{"nobody says", "", nil, 0, 0, []uint32{0}},
		{"image name", "web", nil, 33, 34, []uint32{34, 50000, 50001}},
		{"image uid", "1000", nil, 1000, 1000, []uint32{1000, 50000}},
		{"image uid without entry", "1003", nil, 1003, 0, []uint32{0}},
		{"image uid:gid", "1003:1004", nil, 1003, 1004, []uint32{1004}},
		{"image name:gid", "web:1004", nil, 33, 1004, []uint32{1004, 50000, 50001}},
		{"image name:group", "web:extra", nil, 33, 50000, []uint32{50000, 50001}},
		{"image uid:group", "5:more", nil, 5, 50001, []uint32{50001}},
		{"uid wins over image", "web", &runtime.LinuxContainerSecurityContext{RunAsUser: value(1000)}, 1000, 1000, []uint32{1000, 50000}},
		{"uid 0", "web", &runtime.LinuxContainerSecurityContext{RunAsUser: value(0)}, 0, 0, []uint32{0}},
		{"name", "", &runtime.LinuxContainerSecurityContext{RunAsUsername: "web"}, 33, 34, []uint32{34, 50000, 50001}},
		{"uid and gid", "", &runtime.LinuxContainerSecurityContext{RunAsUser: value(5), RunAsGroup: value(6)}, 5, 6, []uint32{6}},
		{"merge", "1000", &runtime.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234, 1000}}, 1000, 1000, []uint32{1000, 50000, 1234}},
		{"strict", "1000", &runtime.LinuxContainerSecurityContext{SupplementalGroups: []int64{1234}, SupplementalGroupsPolicy: strict}, 1000, 1000, []uint32{1000, 1234}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := made(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
				in.Ctr.Image.Config.User, r.Linux.SecurityContext = c.image, c.sec
			})
			u := s.Process.User
			if u.UID != c.uid || u.GID != c.gid || !equal(u.AdditionalGids, c.groups) {
				t.Errorf("got %d:%d %v, want %d:%d %v", u.UID, u.GID, u.AdditionalGids, c.uid, c.gid, c.groups)
			}
		})
	}
}

func TestUserIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		image string
		sec   *runtime.LinuxContainerSecurityContext
		want  string
	}{
		"unknown image user":  {"ghost", nil, `"ghost" is not in /etc/passwd`},
		"unknown image group": {"web:ghosts", nil, `"ghosts" is not in /etc/group`},
		"image uid too large": {"4294967296", nil, "out of range"},
		"negative image uid":  {"-1", nil, "out of range"},
		"unknown name":        {"", &runtime.LinuxContainerSecurityContext{RunAsUsername: "ghost"}, "ghost"},
		"group alone":         {"", &runtime.LinuxContainerSecurityContext{RunAsGroup: value(5)}, "run_as_group"},
		"negative uid":        {"", &runtime.LinuxContainerSecurityContext{RunAsUser: value(-1)}, "run_as_user"},
		"both":                {"", &runtime.LinuxContainerSecurityContext{RunAsUser: value(1), RunAsUsername: "web"}, "only one"},
		"group out of range":  {"", &runtime.LinuxContainerSecurityContext{SupplementalGroups: []int64{1 << 40}}, "supplemental_groups[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			err := refused(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, _ *runtime.PodSandboxConfig) {
				in.Ctr.Image.Config.User, r.Linux.SecurityContext = c.image, c.sec
			})
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an invalid argument with %q", err, c.want)
			}
		})
	}
}

// Case 59: an id that the user namespace lacks is named, with the range.
func TestUserOutsideOfUserNamespace(t *testing.T) {
	err := refused(t, fakeHost(), func(in *input, r *runtime.ContainerConfig, p *runtime.PodSandboxConfig) {
		in.Pod.Namespaces.User = "/pod/ns/user"
		ids := []*runtime.IDMapping{{HostId: 100000, Length: 65536}}
		p.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtime.UserNamespace{Uids: ids, Gids: ids}
		r.Linux.SecurityContext.RunAsUser = value(70000)
	})
	if !strings.Contains(err.Error(), "user 70000") || !strings.Contains(err.Error(), "0-65535") {
		t.Errorf("the error names neither id nor range: %v", err)
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
