// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec/users"
)

// crunVersion is the newest version of the OCI spec that every crun in use takes.
const crunVersion = "1.0.2"

// input is all that a spec follows from.
type input struct {
	ID      string
	Config  steps.Config
	Ctr     steps.Ctr
	Pod     steps.PodView
	Rootfs  steps.Rootfs
	Volumes steps.Volumes
}

// build is a spec in the making. Protobuf getters are safe on nil, so that sec and
// the configs may be nil.
type build struct {
	input
	host      *host
	config    *runtime.ContainerConfig
	podConfig *runtime.PodSandboxConfig
	sec       *runtime.LinuxContainerSecurityContext
	runtime   steps.Runtime
	spec      *specs.Spec
	user      users.User
}

// newSpec makes the OCI spec of a container, in this order since some parts follow others.
func newSpec(in input, h *host) (*build, error) {
	b := &build{input: in, host: h, config: in.Ctr.Config.M, podConfig: in.Pod.Pod.Config.M}
	b.sec = b.config.GetLinux().GetSecurityContext()
	if err := Validate(b.config, b.podConfig, in.Config); err != nil {
		return nil, err
	}
	var ok bool
	if b.runtime, ok = in.Config.RuntimeFor(in.Pod.Pod.Handler); !ok {
		return nil, fmt.Errorf("runtime handler %q is not configured: %w", in.Pod.Pod.Handler, errdefs.ErrInvalidArgument)
	}
	b.spec = &specs.Spec{
		Version: ociVersion(b.runtime),
		Root:    &specs.Root{Path: rootfsDir, Readonly: b.sec.GetReadonlyRootfs()},
		Process: &specs.Process{},
		Linux:   &specs.Linux{},
	}
	for _, part := range []func() error{
		b.setUser, b.process, b.setCapabilities, b.setNamespaces, b.setSecurity, b.setMounts, b.setResources, b.setDevices, b.setCgroup, b.injectCDI,
	} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	b.setAnnotations()
	return b, nil
}

// rootfsDir is the root file system, relative to the bundle.
const rootfsDir = "rootfs"

func (b *build) setCgroup() error {
	path, _, err := CgroupPaths(b.Config, b.podConfig, b.ID)
	if err != nil {
		return err
	}
	b.spec.Linux.CgroupsPath = path
	return nil
}

func ociVersion(r steps.Runtime) string {
	fallback := specs.Version
	if strings.HasPrefix(filepath.Base(r.Binary), "crun") {
		fallback = crunVersion
	}
	return cmp.Or(r.OCIVersion, fallback)
}

// result is what later actions and the status need of it.
func (b *build) result(bundle string) steps.Spec {
	out := steps.Spec{
		Bundle: bundle, CgroupPath: b.spec.Linux.CgroupsPath, UID: int64(b.user.UID), GID: int64(b.user.GID), StopSignal: b.Ctr.StopSignal,
	}
	for _, g := range b.user.Groups {
		out.AdditionalGIDs = append(out.AdditionalGIDs, int64(g))
	}
	return out
}
