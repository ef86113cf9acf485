// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// CgroupPaths gives the cgroup of container id as its OCI spec names it, and the
// path below the controllers' mount points that this stands for. A parent that
// does not fit the configured driver is errdefs.ErrInvalidArgument.
func CgroupPaths(cfg steps.Config, pod *runtime.PodSandboxConfig, id string) (spec, dir string, err error) {
	parent := pod.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = DefaultCgroupParent(cfg)
	}
	spec, err = cgroups.Path(cfg.CgroupDriver, parent, id)
	if err != nil {
		return "", "", err
	}
	return spec, cgroups.Dir(spec), nil
}

// DefaultCgroupParent is the parent of pods that name none, in the form of the driver.
func DefaultCgroupParent(cfg steps.Config) string {
	if cfg.CgroupDriver == cgroups.Systemd {
		return cgroups.Slice(cfg.DefaultCgroupParent)
	}
	return cfg.DefaultCgroupParent
}

// PodCgroup is the path below the controllers' mount points of the cgroup that is
// the pod's alone; ok is false for a pod that names no parent and so shares one.
func PodCgroup(cfg steps.Config, pod *runtime.PodSandboxConfig) (dir string, ok bool) {
	parent := pod.GetLinux().GetCgroupParent()
	if parent == "" {
		return "", false
	}
	return cgroups.ParentDir(cfg.CgroupDriver, parent), true
}
