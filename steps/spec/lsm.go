// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	appArmorDefault  = "sandflow-default"
	appArmorProfiles = "/sys/kernel/security/apparmor/profiles"
)

// setAppArmor applies the profile. On a node with AppArmor a container that names
// none gets the default one, unless it is privileged; a Localhost profile holds for
// privileged ones too.
func (b *build) setAppArmor() error {
	p, err := appArmorOf(b.sec)
	if err != nil {
		return err
	}
	if p.GetProfileType() == runtime.SecurityProfile_Unconfined && p != nil {
		return nil
	}
	if !b.host.apparmor {
		if p == nil {
			return nil
		}
		return fmt.Errorf("apply AppArmor profile %s %s: this node has no AppArmor: %w", p.GetProfileType(), p.GetLocalhostRef(), errdefs.ErrFailedPrecondition)
	}
	if p.GetProfileType() == runtime.SecurityProfile_Localhost {
		name := strings.TrimPrefix(p.GetLocalhostRef(), localhostPrefix)
		if err := checkLoaded(b.host.appArmorProfiles, name); err != nil {
			return err
		}
		b.spec.Process.ApparmorProfile = name
		return nil
	}
	if b.sec.GetPrivileged() {
		return nil
	}
	if err := b.host.loadAppArmor(appArmorDefault); err != nil {
		return fmt.Errorf("load the default AppArmor profile: %w", err)
	}
	b.spec.Process.ApparmorProfile = appArmorDefault
	return nil
}

// checkLoaded looks a profile up in the kernel's list, whose lines are "name (mode)".
func checkLoaded(list, name string) error {
	f, err := os.Open(list)
	if err != nil {
		return fmt.Errorf("find AppArmor profile %q: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if loaded, _, ok := strings.Cut(s.Text(), " ("); ok && loaded == name {
			return nil
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("find AppArmor profile %q: %w", name, err)
	}
	return fmt.Errorf("AppArmor profile %q is not loaded: %w", name, errdefs.ErrInvalidArgument)
}

// setSELinux labels process and mounts on a node with SELinux. The containers of
// a pod share a level, so that they can share files.
func (b *build) setSELinux() error {
	if !b.host.selinux || b.sec.GetPrivileged() {
		return nil
	}
	process, mount, err := b.host.labels(labelOptions(b.seLinuxOptions(), b.Pod.ID))
	if err != nil {
		return fmt.Errorf("make SELinux labels: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	b.spec.Process.SelinuxLabel, b.spec.Linux.MountLabel = process, mount
	return nil
}

func (b *build) seLinuxOptions() *runtime.SELinuxOption {
	if o := b.sec.GetSelinuxOptions(); o != nil {
		return o
	}
	return b.podConfig.GetLinux().GetSecurityContext().GetSelinuxOptions()
}

func labelOptions(o *runtime.SELinuxOption, pod string) []string {
	options := []string{}
	for _, f := range []struct{ key, value string }{{"user", o.GetUser()}, {"role", o.GetRole()}, {"type", o.GetType()}} {
		if f.value != "" {
			options = append(options, f.key+":"+f.value)
		}
	}
	level := o.GetLevel()
	if level == "" {
		level = podLevel(pod)
	}
	return append(options, "level:"+level)
}

// podLevel is a level that follows from the pod's ID, so that nothing has to be
// kept: two different categories of the 1024.
func podLevel(pod string) string {
	h := fnv.New32a()
	h.Write([]byte(pod))
	a := h.Sum32() % 1024
	b := h.Sum32() / 1024 % 1023
	if b >= a {
		b++
	}
	return fmt.Sprintf("s0:c%d,c%d", min(a, b), max(a, b))
}

// relabel gives the sources of mounts that ask for it the container's label. The
// library refuses the system's own directories.
func (b *build) relabel(m *runtime.Mount, source string) error {
	if !m.GetSelinuxRelabel() || b.spec.Linux.MountLabel == "" || b.unconfinedType() {
		return nil
	}
	if err := b.host.relabel(source, b.spec.Linux.MountLabel, false); err != nil {
		return fmt.Errorf("relabel %s: %w: %w", source, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// unconfinedType tells of a process that may read every label.
func (b *build) unconfinedType() bool { return b.seLinuxOptions().GetType() == "spc_t" }
