// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package shim is the action that launches a pod's shim, and with it the init
// of a shared PID namespace.
package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	criruntime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
	"github.com/sandflow-cri/sandflow/steps/runtime"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

func init() {
	steps.Register("shim", func(s *steps.Services) engine.Action { return New(s.Config, s.Runtime) })
}

// Action is the action "shim". Its resources are the process, what lies in
// <PodDir>/shim, and the mount <PodDir>/ns/pid.
type Action struct {
	cfg     steps.Config
	runtime *runtime.Manager
}

var (
	_ engine.Action      = (*Action)(nil)
	_ engine.Needer      = (*Action)(nil)
	_ engine.Filler      = (*Action)(nil)
	_ engine.Conditional = (*Action)(nil)
	_ engine.Sweeper     = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config, m *runtime.Manager) *Action { return &Action{cfg: c, runtime: m} }

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key {
	return []engine.Key{steps.PodRequest.Key(), steps.PodNamespaces.Key()}
}

// Fills is part of engine.Filler.
func (a *Action) Fills() engine.Key { return steps.PodShim.Key() }

// Applies is part of engine.Conditional: other runtimes bring their own shims.
func (a *Action) Applies(r *engine.Run) bool {
	req, ok, err := steps.PodRequest.Get(r)
	if err != nil || !ok {
		return true // Do says what is wrong
	}
	rt, ok := a.cfg.RuntimeFor(req.Handler)
	return !ok || rt.Type == runtime.OwnType && rt.Sandbox != "container"
}

// Do launches the shim.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.PodRequest.Need(r)
	if err != nil {
		return err
	}
	ns, err := steps.PodNamespaces.Need(r)
	if err != nil {
		return err
	}
	dir, err := pod.Ensure(a.cfg, r.ID(), req.Config.M)
	if err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	launch := runtime.LaunchRequest{
		PodID: r.ID(), Dir: shimDir(dir), SharedPID: sharedPID(req.Config.M),
		NetNS: ns.Net, IPC: ns.IPC, UTS: ns.UTS, User: ns.User,
	}
	if launch.SharedPID {
		launch.CgroupPath = a.initCgroup(req.Config.M, r.ID())
	}
	s, err := a.runtime.Launch(ctx, launch)
	if err != nil {
		return err
	}
	return steps.PodShim.Set(r, steps.Shim(s))
}

// Admit refuses the record of a pod whose shim this daemon cannot speak to. It is for
// engine.Options.
func Admit(v *engine.View) error {
	s, ok, err := steps.PodShim.Get(v)
	if err != nil || !ok || v.Workflow != steps.Sandbox {
		return nil //nolint:nilerr // a slot that cannot be read is for those to tell who need it
	}
	return runtime.CheckProtocol(s.Protocol)
}

// Undo ends the shim and all that it still runs.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error {
	if err := a.remove(ctx, r.ID()); err != nil {
		return err
	}
	// The shim's directory names the cgroup of its init; somebody may have removed it.
	if req, ok, err := steps.PodRequest.Get(r); err == nil && ok && sharedPID(req.Config.M) {
		return bundle.RemoveCgroupPath(ctx, a.initCgroup(req.Config.M, r.ID()))
	}
	return nil
}

func (a *Action) remove(ctx context.Context, id string) error {
	dir, err := pod.Dir(a.cfg, id)
	if err != nil {
		return err
	}
	if err := a.runtime.Shutdown(ctx, id, shimDir(dir)); err != nil {
		return err
	}
	// The directory of pins is shared with the action namespaces: the last one removes it.
	if err := unix.Rmdir(filepath.Join(dir, "ns")); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
		return fmt.Errorf("remove directory of namespaces of pod %s: %w", id, err)
	}
	return pod.Release(a.cfg, id)
}

// Sweep ends shims of pods that no record knows.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	pods := filepath.Dir(a.cfg.PodDir("x"))
	left, err := os.ReadDir(pods)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list shims: %w", err)
	}
	for _, d := range left {
		if _, err := os.Lstat(shimDir(filepath.Join(pods, d.Name()))); err != nil || s.Known(steps.Sandbox, d.Name()) {
			continue
		}
		s.Remove("shim", d.Name(), func() error { return a.remove(ctx, d.Name()) })
	}
	return nil
}

func shimDir(podDir string) string { return filepath.Join(podDir, "shim") }

// sharedPID tells whether the pod's containers share one PID namespace. That is
// the CRI's zero value, and so holds for a pod that does not say.
func sharedPID(c *criruntime.PodSandboxConfig) bool {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() == criruntime.NamespaceMode_POD
}

// initCgroup puts the init where a pause container would be, in the form of the cgroup driver:
// under systemd a scope in the pod's slice. It stays with the shim if the parent does not fit
// the driver, which the pod's containers will be told.
func (a *Action) initCgroup(c *criruntime.PodSandboxConfig, id string) string {
	parent := c.GetLinux().GetCgroupParent()
	if parent == "" {
		parent = a.cfg.DefaultCgroupParent
	}
	if parent == "" {
		return ""
	}
	path, err := cgroups.Path(a.cfg.CgroupDriver, parent, id)
	if err != nil {
		return ""
	}
	return path
}
