// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroups says where the cgroups of containers are: the path written
// into an OCI spec for a cgroup driver, the directory that it stands for, and
// which controllers this node has.
package cgroups

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// The cgroup drivers, as in kubelet's configuration.
const (
	Cgroupfs = "cgroupfs"
	Systemd  = "systemd"
)

const (
	sliceSuffix = ".slice"
	// scopePrefix is the prefix of the systemd scopes of containers.
	scopePrefix = "sandflow"
)

// Path is the linux.cgroupsPath of the OCI spec of container id below parent:
// "/parent/id" for the cgroupfs driver, "slice:sandflow:id" for systemd. A
// parent of the other driver's form, or one with "..", is refused with
// errdefs.ErrInvalidArgument.
func Path(driver, parent, id string) (string, error) {
	for part := range strings.SplitSeq(parent, "/") {
		if part == ".." {
			return "", refuse(driver, parent, `".." could leave the hierarchy`)
		}
	}
	if strings.ContainsAny(parent, ":\x00") {
		return "", refuse(driver, parent, "it has a character that no cgroup may have")
	}
	clean := path.Clean("/" + parent)
	isSlice := strings.HasSuffix(clean, sliceSuffix)
	switch driver {
	case Systemd:
		if !isSlice {
			return "", refuse(driver, parent, "systemd wants a slice (a name that ends in .slice)")
		}
		if err := checkSlice(path.Base(clean)); err != nil {
			return "", refuse(driver, parent, err.Error())
		}
		return path.Base(clean) + ":" + scopePrefix + ":" + id, nil
	case Cgroupfs, "":
		if isSlice {
			return "", refuse(driver, parent, "it is a slice of systemd; is kubelet set to another cgroup driver?")
		}
		return path.Join(clean, id), nil
	}
	return "", fmt.Errorf("cgroup driver %q is unknown, must be %q or %q: %w", driver, Cgroupfs, Systemd, errdefs.ErrInvalidArgument)
}

// Slice is the default parent for the systemd driver: parent itself if it is a
// slice, else the slice called like its last element.
func Slice(parent string) string {
	base := path.Base(path.Clean("/" + parent))
	if strings.HasSuffix(base, sliceSuffix) {
		return base
	}
	if base == "/" {
		return scopePrefix + sliceSuffix
	}
	return base + sliceSuffix
}

func refuse(driver, parent, why string) error {
	if driver == "" {
		driver = Cgroupfs
	}
	return fmt.Errorf("cgroup_parent %q does not fit the cgroup driver %s: %s: %w", parent, driver, why, errdefs.ErrInvalidArgument)
}

func checkSlice(slice string) error {
	name := strings.TrimSuffix(slice, sliceSuffix)
	if name == "" || strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-") || strings.Contains(name, "--") {
		return fmt.Errorf("%q is no name of a slice", slice)
	}
	return nil
}

// Dir is the path below the mount point of a controller that cgroupsPath, as
// made by Path, stands for.
func Dir(cgroupsPath string) string {
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		return path.Clean("/" + cgroupsPath)
	}
	return path.Join(expandSlice(parts[0]), parts[1]+"-"+parts[2]+".scope")
}

// ParentDir is Dir for the parent of a pod's containers, in either driver's form.
func ParentDir(driver, parent string) string {
	if driver == Systemd {
		return expandSlice(path.Base(path.Clean("/" + parent)))
	}
	return path.Clean("/" + parent)
}

// expandSlice gives the directory of a slice: systemd nests them by the dashes
// in their names (systemd.slice(5)).
func expandSlice(slice string) string {
	name := strings.TrimSuffix(slice, sliceSuffix)
	if name == "" || name == "-" {
		return "/"
	}
	dir, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		dir = path.Join(dir, prefix+sliceSuffix)
		prefix += "-"
	}
	return dir
}
