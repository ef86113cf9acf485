// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// editor does to an OCI spec what NRI's generator asks for. Its spec has
// Process and Linux.
type editor struct{ s *specs.Spec }

var _ generate.UnderlyingGenerator = (*editor)(nil)

// made gives *p, making it if it is not there.
func made[T any](p **T) *T {
	if *p == nil {
		*p = new(T)
	}
	return *p
}

// put sets a key of *m.
func put(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// replace puts v where same is true, or at the end.
func replace[T any](list []T, v T, same func(T) bool) []T {
	if i := slices.IndexFunc(list, same); i >= 0 {
		list[i] = v
		return list
	}
	return append(list, v)
}

func (e *editor) resources() *specs.LinuxResources { return made(&e.s.Linux.Resources) }
func (e *editor) cpu() *specs.LinuxCPU             { return made(&e.resources().CPU) }
func (e *editor) memory() *specs.LinuxMemory       { return made(&e.resources().Memory) }
func (e *editor) hooks() *specs.Hooks              { return made(&e.s.Hooks) }

func (e *editor) Spec() *specs.Spec { return e.s }

func (e *editor) AddAnnotation(key, value string) { put(&e.s.Annotations, key, value) }
func (e *editor) RemoveAnnotation(key string)     { delete(e.s.Annotations, key) }

func (e *editor) AddLinuxSysctl(key, value string) { put(&e.s.Linux.Sysctl, key, value) }
func (e *editor) RemoveLinuxSysctl(key string)     { delete(e.s.Linux.Sysctl, key) }

func (e *editor) AddDevice(d specs.LinuxDevice) {
	e.s.Linux.Devices = replace(e.s.Linux.Devices, d, func(had specs.LinuxDevice) bool { return had.Path == d.Path })
}

func (e *editor) RemoveDevice(path string) {
	e.s.Linux.Devices = slices.DeleteFunc(e.s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == path })
}

// kinds are the words of NRI for namespaces; they are those of the OCI spec.
var kinds = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace,
	specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
}

func (e *editor) AddOrReplaceLinuxNamespace(kind, path string) error {
	n := specs.LinuxNamespace{Type: specs.LinuxNamespaceType(kind), Path: path}
	if !slices.Contains(kinds, n.Type) {
		return fmt.Errorf("there is no namespace of type %q: %w", kind, errdefs.ErrInvalidArgument)
	}
	e.s.Linux.Namespaces = replace(e.s.Linux.Namespaces, n, func(had specs.LinuxNamespace) bool { return had.Type == n.Type })
	return nil
}

func (e *editor) RemoveLinuxNamespace(kind string) error {
	e.s.Linux.Namespaces = slices.DeleteFunc(e.s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return string(n.Type) == kind })
	return nil
}

func (e *editor) AddPreStartHook(h specs.Hook) {
	e.hooks().Prestart = append(e.hooks().Prestart, h) //nolint:staticcheck // plugins still ask for it
}
func (e *editor) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }
func (e *editor) AddPostStopHook(h specs.Hook)  { e.hooks().Poststop = append(e.hooks().Poststop, h) }

func (e *editor) AddProcessEnv(name, value string) {
	e.s.Process.Env = replace(e.s.Process.Env, name+"="+value, func(had string) bool { return strings.HasPrefix(had, name+"=") })
}
func (e *editor) ClearProcessEnv()             { e.s.Process.Env = nil }
func (e *editor) SetProcessArgs(args []string) { e.s.Process.Args = slices.Clone(args) }
func (e *editor) SetProcessOOMScoreAdj(n int)  { e.s.Process.OOMScoreAdj = &n }

func (e *editor) AddMount(m specs.Mount) { e.s.Mounts = append(e.s.Mounts, m) }
func (e *editor) Mounts() []specs.Mount  { return e.s.Mounts }
func (e *editor) ClearMounts()           { e.s.Mounts = nil }
func (e *editor) RemoveMount(dest string) {
	e.s.Mounts = slices.DeleteFunc(e.s.Mounts, func(m specs.Mount) bool { return m.Destination == dest })
}

func (e *editor) SetLinuxRootPropagation(mode string) error {
	if !slices.Contains([]string{"", "private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable"}, mode) {
		return fmt.Errorf("there is no mount propagation %q: %w", mode, errdefs.ErrInvalidArgument)
	}
	e.s.Linux.RootfsPropagation = mode
	return nil
}
func (e *editor) SetLinuxCgroupsPath(path string) { e.s.Linux.CgroupsPath = path }

func (e *editor) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	e.resources().Devices = append(e.resources().Devices, specs.LinuxDeviceCgroup{
		Allow: allow, Type: kind, Major: major, Minor: minor, Access: access,
	})
}

func (e *editor) AddLinuxResourcesHugepageLimit(size string, limit uint64) {
	l := specs.LinuxHugepageLimit{Pagesize: size, Limit: limit}
	e.resources().HugepageLimits = replace(e.resources().HugepageLimits, l, func(had specs.LinuxHugepageLimit) bool { return had.Pagesize == size })
}

func (e *editor) AddLinuxResourcesUnified(key, value string) {
	unified := maps.Clone(e.resources().Unified)
	put(&unified, key, value)
	e.resources().Unified = unified
}

func (e *editor) SetLinuxResourcesCPUCpus(cpus string)            { e.cpu().Cpus = cpus }
func (e *editor) SetLinuxResourcesCPUMems(mems string)            { e.cpu().Mems = mems }
func (e *editor) SetLinuxResourcesCPUPeriod(n uint64)             { e.cpu().Period = &n }
func (e *editor) SetLinuxResourcesCPUQuota(n int64)               { e.cpu().Quota = &n }
func (e *editor) SetLinuxResourcesCPUShares(n uint64)             { e.cpu().Shares = &n }
func (e *editor) SetLinuxResourcesCPURealtimePeriod(n uint64)     { e.cpu().RealtimePeriod = &n }
func (e *editor) SetLinuxResourcesCPURealtimeRuntime(n int64)     { e.cpu().RealtimeRuntime = &n }
func (e *editor) SetLinuxResourcesMemoryLimit(limit int64)        { e.memory().Limit = &limit }
func (e *editor) SetLinuxResourcesMemorySwap(limitWithSwap int64) { e.memory().Swap = &limitWithSwap }
