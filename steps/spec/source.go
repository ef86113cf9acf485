// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// bindOptions are the mount options that a request may add.
var bindOptions = []string{
	"noexec", "exec", "nosuid", "suid", "nodev", "dev", "noatime", "atime", "nodiratime", "relatime", "strictatime", "nosymfollow",
}

// hostSource gives the real path of a mount's source. A missing one is made as a
// directory, as other runtimes do and kubelet's hostPath relies on.
func hostSource(p string) (string, error) {
	if _, err := os.Stat(p); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(p, 0o755); err != nil {
			return "", fmt.Errorf("make mount source %s: %w: %w", p, err, errdefs.ErrInvalidArgument)
		}
	}
	resolved, err := filepath.EvalSymlinks(p)
	if err != nil {
		return "", fmt.Errorf("find mount source %s: %w: %w", p, err, errdefs.ErrInvalidArgument)
	}
	return resolved, nil
}

// checkShared refuses a propagation that the source's mount cannot give: it would
// silently be none.
func checkShared(source string, p runtime.MountPropagation) error {
	if p == runtime.MountPropagation_PROPAGATION_PRIVATE {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(source))
	if err != nil {
		return fmt.Errorf("find the mount of %s: %w", source, err)
	}
	return checkSharedIn(mounts, source, p)
}

// checkSharedIn does so with the mounts that hold source, in the order of the kernel's table.
func checkSharedIn(mounts []*mountinfo.Info, source string, p runtime.MountPropagation) error {
	var of *mountinfo.Info
	for _, m := range mounts {
		if of == nil || len(m.Mountpoint) >= len(of.Mountpoint) {
			of = m
		}
	}
	if of == nil {
		return fmt.Errorf("mount source %s: no mount holds it: %w", source, errdefs.ErrInvalidArgument)
	}
	shared, slave := false, false
	for tag := range strings.FieldsSeq(of.Optional) {
		shared = shared || strings.HasPrefix(tag, "shared:")
		slave = slave || strings.HasPrefix(tag, "master:")
	}
	if shared || slave && p == runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER {
		return nil
	}
	return fmt.Errorf("mount source %s: propagation %s needs a shared mount, but %s is not one: %w", source, p, of.Mountpoint, errdefs.ErrInvalidArgument)
}

// validateMount checks what needs no file system (CRI: Mount).
func validateMount(field string, m *runtime.Mount) error {
	if err := validateMountPaths(field, m); err != nil {
		return err
	}
	if m.GetRecursiveReadOnly() {
		if !m.GetReadonly() {
			return invalid(field+".recursive_read_only", "it needs readonly")
		}
		if m.GetPropagation() != runtime.MountPropagation_PROPAGATION_PRIVATE {
			return invalid(field+".recursive_read_only", "it needs propagation PRIVATE, not %s", m.GetPropagation())
		}
	}
	if _, ok := runtime.MountPropagation_name[int32(m.GetPropagation())]; !ok {
		return invalid(field+".propagation", "%d is unknown", m.GetPropagation())
	}
	if (len(m.GetUidMappings()) == 0) != (len(m.GetGidMappings()) == 0) {
		return invalid(field, "uidMappings and gidMappings must be set together")
	}
	for name, mappings := range map[string][]*runtime.IDMapping{"uidMappings": m.GetUidMappings(), "gidMappings": m.GetGidMappings()} {
		for i, id := range mappings {
			if id.GetLength() == 0 || uint64(id.GetHostId())+uint64(id.GetLength()) > math.MaxUint32 ||
				uint64(id.GetContainerId())+uint64(id.GetLength()) > math.MaxUint32 {
				return invalid(fmt.Sprintf("%s.%s[%d]", field, name, i), "%d:%d:%d is no range of ids", id.GetContainerId(), id.GetHostId(), id.GetLength())
			}
		}
	}
	for _, o := range m.GetMountOptions() {
		if !slices.Contains(bindOptions, o) {
			return invalid(field+".mount_options", "%q is not one of %s", o, strings.Join(bindOptions, ", "))
		}
	}
	return nil
}

// maxPath is PATH_MAX of Linux, with the final zero.
const maxPath = 4096

func validateMountPaths(field string, m *runtime.Mount) error {
	target := m.GetContainerPath()
	switch {
	case len(target) >= maxPath:
		return invalid(field+".container_path", "it has %d bytes, the limit is %d", len(target), maxPath-1)
	case len(m.GetHostPath()) >= maxPath:
		return invalid(field+".host_path", "it has %d bytes, the limit is %d", len(m.GetHostPath()), maxPath-1)
	case target == "":
		return invalid(field+".container_path", "it is empty")
	case strings.ContainsRune(target, 0):
		return invalid(field+".container_path", "%q has a zero byte", target)
	case !filepath.IsAbs(target):
		return invalid(field+".container_path", "%q is not absolute", target)
	case inside(target) == "/":
		return invalid(field+".container_path", "%q is the root of the container", target)
	case m.GetImage().GetImage() != "":
		if m.GetHostPath() != "" {
			return invalid(field, "only one of host_path and image can be set")
		}
		if !m.GetReadonly() {
			return invalid(field+".readonly", "it must be set: image %q cannot be written to", m.GetImage().GetImage())
		}
		return nil
	case m.GetImageSubPath() != "":
		return invalid(field+".image_sub_path", "it needs image")
	case !filepath.IsAbs(m.GetHostPath()):
		return invalid(field+".host_path", "%q is not absolute", m.GetHostPath())
	case strings.ContainsRune(m.GetHostPath(), 0):
		return invalid(field+".host_path", "%q has a zero byte", m.GetHostPath())
	}
	return nil
}
