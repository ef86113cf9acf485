// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Case 95: only mounts that ask for it get a label, with the container's own level and never
// shared; none where the process may read all, and none of the runtime's own files.
func TestCase95Relabel(t *testing.T) {
	const own = "system_u:object_r:container_file_t:s0:c1,c2"
	source := t.TempDir()
	for _, k := range []struct {
		what  string
		ask   bool
		label string // of the container's mounts; none on a node without SELinux, or if privileged
		kind  string
		want  string
	}{
		{"not asked", false, own, "", ""},
		{"asked", true, own, "", own},
		{"asked, privileged", true, "", "", ""},
		{"asked, unconfined type", true, own, "spc_t", ""},
	} {
		got := ""
		h := fakeHost()
		h.relabel = func(path, label string, shared bool) error {
			if path != source || shared {
				t.Errorf("%s: relabelled %s, shared %v", k.what, path, shared)
			}
			got = label
			return nil
		}
		b := &build{host: h, spec: &specs.Spec{Linux: &specs.Linux{MountLabel: k.label}}}
		b.sec = &runtime.LinuxContainerSecurityContext{SelinuxOptions: &runtime.SELinuxOption{Type: k.kind}}
		if _, err := b.requestMount(&runtime.Mount{HostPath: source, ContainerPath: "/etc/hosts", SelinuxRelabel: k.ask}); err != nil {
			t.Errorf("%s: %v", k.what, err)
		}
		if got != k.want {
			t.Errorf("%s: labelled %q, want %q", k.what, got, k.want)
		}
	}
	h := fakeHost()
	h.relabel = func(string, string, bool) error { return errors.New("SELinux relabeling of /etc is not allowed") }
	b := &build{host: h, spec: &specs.Spec{Linux: &specs.Linux{MountLabel: own}}, sec: &runtime.LinuxContainerSecurityContext{}}
	_, err := b.requestMount(&runtime.Mount{HostPath: "/etc", ContainerPath: "/m", SelinuxRelabel: true})
	if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "/etc") {
		t.Errorf("a directory of the system: %v", err)
	}
	if detect().selinux && label.Relabel("/etc", own, false) == nil {
		t.Error("the library relabels the system's directories")
	}
}
