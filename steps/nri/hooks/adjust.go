// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// adjust changes an OCI spec as plugins want. CDI devices are looked up in dirs.
func adjust(s *specs.Spec, a *api.ContainerAdjustment, dirs []string) error {
	if s.Process == nil {
		s.Process = &specs.Process{}
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	for _, l := range a.GetRlimits() { // they are appended: one of a kind is enough
		s.Process.Rlimits = slices.DeleteFunc(s.Process.Rlimits, func(had specs.POSIXRlimit) bool { return had.Type == l.GetType() })
	}
	settle(a.GetAnnotations())
	settle(a.GetLinux().GetSysctl())
	g := generate.SpecGenerator(&editor{s},
		generate.WithCDIDeviceInjector(func(s *specs.Spec, names []string) error { return injectCDI(s, dirs, names) }),
		generate.WithBlockIOResolver(func(class string) (*specs.LinuxBlockIO, error) {
			return nil, fmt.Errorf("block I/O class %q: no classes are configured here: %w", class, errdefs.ErrInvalidArgument)
		}),
		generate.WithRdtResolver(func(class string) (*specs.LinuxIntelRdt, error) {
			return &specs.LinuxIntelRdt{ClosID: class}, nil
		}),
	)
	if err := g.Adjust(a); err != nil {
		return err
	}
	if p := a.GetLinux().GetSeccompPolicy(); p.GetDefaultErrno() != nil && s.Linux.Seccomp != nil {
		errno := uint(p.GetDefaultErrno().GetValue())
		s.Linux.Seccomp.DefaultErrnoRet = &errno
	}
	return nil
}

// settle drops the removal of a key that is set as well: the generator goes
// through the map in any order.
func settle(m map[string]string) {
	for key := range m {
		delete(m, api.MarkForRemoval(key))
	}
}

func injectCDI(s *specs.Spec, dirs, names []string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read CDI specifications: %w", err)
	}
	missing, err := cache.InjectDevices(s, names...)
	if len(missing) > 0 {
		return fmt.Errorf("CDI devices %s are not in %s: %w",
			strings.Join(missing, ", "), strings.Join(dirs, ", "), errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("inject CDI devices: %w", err)
	}
	return nil
}
