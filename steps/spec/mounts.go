// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
)

const (
	bind   = "bind"
	devDir = "/dev"
	shmDir = "/dev/shm"
	sysDir = "/sys"
)

// setMounts brings together the kernel's file systems, the pod's files, the
// volumes and the request's mounts. Whoever is nearer to the user wins a place:
// request, volumes, pod's files, defaults.
func (b *build) setMounts() error {
	request, err := b.requestMounts()
	if err != nil {
		return err
	}
	taken := destinations(request)
	volumes := free(taken, volumeMounts(b.Volumes))
	taken = append(taken, destinations(volumes)...)
	files := free(taken, b.fileMounts())
	defaults := free(taken, b.defaultMounts())
	if slices.Contains(taken, devDir) {
		// The mount brings its own /dev/pts and the like.
		defaults = slices.DeleteFunc(defaults, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, devDir+"/") })
		files = slices.DeleteFunc(files, func(m specs.Mount) bool { return m.Destination == shmDir })
	}
	b.spec.Mounts = slices.Concat(defaults, files, volumes, request)
	parentsFirst(b.spec.Mounts)
	return nil
}

// parentsFirst sorts by depth, so that no mount hides one made before it, and else keeps the order.
func parentsFirst(mounts []specs.Mount) {
	depth := func(m specs.Mount) int {
		return strings.Count(strings.TrimSuffix(path.Clean(m.Destination), "/"), "/")
	}
	slices.SortStableFunc(mounts, func(a, b specs.Mount) int { return cmp.Compare(depth(a), depth(b)) })
}

func destinations(mounts []specs.Mount) []string {
	var out []string
	for _, m := range mounts {
		out = append(out, m.Destination)
	}
	return out
}

// free leaves out mounts whose place is taken.
func free(taken []string, mounts []specs.Mount) []specs.Mount {
	return slices.DeleteFunc(mounts, func(m specs.Mount) bool { return slices.Contains(taken, m.Destination) })
}

// defaultMounts are those that every Linux container has (OCI runtime spec,
// config-linux.md). /sys and cgroups are writable for privileged containers only.
func (b *build) defaultMounts() []specs.Mount {
	access := "ro"
	if b.sec.GetPrivileged() {
		access = "rw"
	}
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if o := b.userns(); o == nil || mapped(o.GetGids(), ttyGroup) {
		pts = append(pts, "gid=5")
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: devDir, Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		b.sysMount(access),
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
	}
}

// ttyGroup is the group of terminals in every distribution.
const ttyGroup = 5

func (b *build) sysMount(access string) specs.Mount {
	if b.Pod.Namespaces.User != "" && b.Pod.Namespaces.Net == "" {
		// The kernel lets nobody mount the sysfs of a network namespace owned by another user namespace.
		return specs.Mount{Destination: sysDir, Type: bind, Source: sysDir, Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}}
	}
	if b.sysNeedsBind() {
		access = "rw"
	}
	return specs.Mount{Destination: sysDir, Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}}
}

// fileMounts are the pod's files: read-only with a read-only root, so that they
// are no way around it. Where the pod uses the node's own files, these are never
// writable. /dev/shm stays writable in any case.
func (b *build) fileMounts() []specs.Mount {
	var out []specs.Mount
	for _, f := range []struct{ target, source string }{
		{"/etc/hosts", b.Pod.Files.Hosts}, {"/etc/hostname", b.Pod.Files.Hostname}, {"/etc/resolv.conf", b.Pod.Files.ResolvConf},
	} {
		source, access := f.source, "rw"
		if b.sec.GetReadonlyRootfs() || source == "" {
			access = "ro"
		}
		if source == "" {
			source = f.target
		}
		if !b.host.exists(source) {
			continue
		}
		out = append(out, specs.Mount{
			Destination: f.target, Type: bind, Source: source,
			Options: []string{"rbind", "rprivate", "nosuid", "nodev", "noexec", access},
		})
	}
	shm := cmp.Or(b.Pod.Files.Shm, shmDir)
	return append(out, specs.Mount{
		Destination: shmDir, Type: bind, Source: shm,
		Options: []string{"rbind", "rprivate", "nosuid", "nodev", "noexec", "rw"},
	})
}

func volumeMounts(v steps.Volumes) []specs.Mount {
	out := make([]specs.Mount, 0, len(v.Mounts))
	for _, m := range v.Mounts {
		access := "rw"
		if m.ReadOnly || m.ImageRef != "" {
			access = "ro"
		}
		out = append(out, specs.Mount{
			Destination: inside(m.Target), Type: bind, Source: m.Source, Options: []string{"rbind", "rprivate", access},
		})
	}
	return out
}

// inside makes a path in the container absolute and without dots.
func inside(p string) string { return path.Clean("/" + p) }

// requestMounts are the request's mounts. Those of images are among the volumes.
func (b *build) requestMounts() ([]specs.Mount, error) {
	var out []specs.Mount
	for _, m := range b.config.GetMounts() {
		if m.GetImage().GetImage() != "" {
			continue
		}
		mount, err := b.requestMount(m)
		if err != nil {
			return nil, err
		}
		b.raisePropagation(m.GetPropagation())
		out = append(out, mount)
	}
	return out, nil
}

func (b *build) requestMount(m *runtime.Mount) (specs.Mount, error) {
	source, err := hostSource(m.GetHostPath())
	if err != nil {
		return specs.Mount{}, err
	}
	if err := checkShared(source, m.GetPropagation()); err != nil {
		return specs.Mount{}, err
	}
	if err := b.relabel(m, source); err != nil {
		return specs.Mount{}, err
	}
	return specs.Mount{
		Destination: inside(m.GetContainerPath()), Type: bind, Source: source, Options: mountOptions(m),
		UIDMappings: idMappings(m.GetUidMappings()), GIDMappings: idMappings(m.GetGidMappings()),
	}, nil
}

// mountOptions gives the options of a request's mount. Read-only is recursive only where asked for.
func mountOptions(m *runtime.Mount) []string {
	access := "rw"
	switch {
	case m.GetRecursiveReadOnly():
		access = "rro"
	case m.GetReadonly():
		access = "ro"
	}
	return append([]string{"rbind", propagation(m.GetPropagation()), access}, m.GetMountOptions()...)
}

func propagation(p runtime.MountPropagation) string {
	switch p {
	case runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		return "rslave"
	case runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		return "rshared"
	case runtime.MountPropagation_PROPAGATION_PRIVATE:
	}
	return "rprivate"
}

// raisePropagation makes the root let through what one of its mounts wants.
func (b *build) raisePropagation(p runtime.MountPropagation) {
	switch p {
	case runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		b.spec.Linux.RootfsPropagation = "rshared"
	case runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if b.spec.Linux.RootfsPropagation == "" {
			b.spec.Linux.RootfsPropagation = "rslave"
		}
	case runtime.MountPropagation_PROPAGATION_PRIVATE:
	}
}
