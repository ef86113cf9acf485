// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Paths masked and read-only where the request has no security context at all.
// With one, its lists are taken as they are: kubelet asks for an unmasked /proc
// by sending empty ones.
var (
	defaultMasked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
		"/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// setSecurity applies what confines the container. Capabilities must be set
// already: the default seccomp profile follows them.
func (b *build) setSecurity() error {
	b.spec.Process.NoNewPrivileges = b.sec.GetNoNewPrivs()
	b.spec.Linux.MaskedPaths, b.spec.Linux.ReadonlyPaths = b.paths()
	if b.sysNeedsBind() {
		b.spec.Linux.ReadonlyPaths = append(b.spec.Linux.ReadonlyPaths, "/sys")
	}
	if err := b.setSeccomp(); err != nil {
		return err
	}
	if err := b.setAppArmor(); err != nil {
		return err
	}
	return b.setSELinux()
}

func (b *build) paths() (masked, readonly []string) {
	switch {
	case b.sec.GetPrivileged():
		return nil, nil
	case b.sec == nil:
		return slices.Clone(defaultMasked), slices.Clone(defaultReadonly)
	}
	return slices.Clone(b.sec.GetMaskedPaths()), slices.Clone(b.sec.GetReadonlyPaths())
}

// sysNeedsBind tells of an unprivileged container beside privileged ones. A
// network namespace has one sysfs superblock, and the first mount's ro would stick
// to it and bind the privileged containers too. So /sys is mounted rw here and
// made read-only by a bind mount on itself.
func (b *build) sysNeedsBind() bool {
	return b.podConfig.GetLinux().GetSecurityContext().GetPrivileged() && !b.sec.GetPrivileged()
}

func validateSecurity(s *runtime.LinuxContainerSecurityContext, pod *runtime.LinuxSandboxSecurityContext) error {
	if s.GetPrivileged() && !pod.GetPrivileged() {
		return invalid("security_context.privileged", "the sandbox was not made for privileged containers")
	}
	if err := validateUser(s); err != nil {
		return err
	}
	if err := validateCapabilities(s.GetCapabilities()); err != nil {
		return err
	}
	if err := validateNamespaces(s.GetNamespaceOptions(), pod.GetNamespaceOptions()); err != nil {
		return err
	}
	if _, err := seccompOf(s, ""); err != nil {
		return err
	}
	if _, err := appArmorOf(s); err != nil {
		return err
	}
	for field, paths := range map[string][]string{"masked_paths": s.GetMaskedPaths(), "readonly_paths": s.GetReadonlyPaths()} {
		for i, p := range paths {
			if !path.IsAbs(p) {
				return invalid(fmt.Sprintf("security_context.%s[%d]", field, i), "%q is not absolute", p)
			}
		}
	}
	return nil
}

// invalid says what is wrong with a field of the request, as errdefs.ErrInvalidArgument.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
