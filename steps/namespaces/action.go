// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package namespaces is the action that makes a pod's network, IPC, UTS and
// user namespaces and pins them by bind mounts, so that they need no process.
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

func init() {
	steps.Register("namespaces", func(s *steps.Services) engine.Action { return New(s.Config) })
}

// kinds are the namespaces that are pinned, as the kernel calls them.
var kinds = []string{"net", "ipc", "uts", "user"}

// Action is the action "namespaces". Its resources are the mounts
// <PodDir>/ns/{net,ipc,uts,user}.
type Action struct{ cfg steps.Config }

var (
	_ engine.Action = (*Action)(nil)
	_ engine.Needer = (*Action)(nil)
	_ engine.Filler = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config) *Action { return &Action{cfg: c} }

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key { return []engine.Key{steps.PodRequest.Key()} }

// Fills is part of engine.Filler.
func (a *Action) Fills() engine.Key { return steps.PodNamespaces.Key() }

// Do makes, sets up and pins the namespaces.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.PodRequest.Need(r)
	if err != nil {
		return err
	}
	p, err := a.plan(r.ID(), req.Config.M)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := pod.Ensure(a.cfg, r.ID(), req.Config.M); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	if err := pod.MakeDir(p.dir); err != nil {
		return fmt.Errorf("make the directory of namespaces: %w", err)
	}
	if err := p.make(); err != nil {
		return fmt.Errorf("make the pod's namespaces: %w", err)
	}
	return steps.PodNamespaces.Set(r, p.result())
}

// Undo unpins them. The kernel frees a namespace with its last user.
func (a *Action) Undo(_ context.Context, r *engine.Run) error {
	dir, err := pod.Dir(a.cfg, r.ID())
	if err != nil {
		return err
	}
	dir = nsDir(dir)
	var errs []error
	for _, kind := range kinds {
		errs = append(errs, unpin(filepath.Join(dir, kind)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return pod.Release(a.cfg, r.ID())
}

func nsDir(podDir string) string { return filepath.Join(podDir, "ns") }

// unpin removes a pin. Removing the file also detaches the copies of the mount
// that other mount namespaces have.
func unpin(path string) error {
	if err := pod.Unmount(path); err != nil {
		return err
	}
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// pin keeps the namespace of a thread or process alive under path.
func pin(nsFile, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(nsFile, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin %s at %s: %w", nsFile, path, err)
	}
	return nil
}

// plan is what to make for one pod.
type plan struct {
	dir     string
	flags   map[string]uintptr // kind → CLONE_NEW…; user is separate
	user    *pod.UserNS
	host    string
	sysctls []pod.Sysctl
}

func (a *Action) plan(id string, cfg *runtime.PodSandboxConfig) (*plan, error) {
	if err := pod.Validate(cfg); err != nil {
		return nil, err
	}
	dir, err := pod.Dir(a.cfg, id)
	if err != nil {
		return nil, err
	}
	p := &plan{dir: nsDir(dir), flags: map[string]uintptr{}}
	if p.host, err = pod.Hostname(cfg); err != nil {
		return nil, err
	}
	if p.sysctls, err = pod.Sysctls(cfg, a.cfg); err != nil {
		return nil, err
	}
	if !pod.HostNetwork(cfg) {
		p.flags["net"] = unix.CLONE_NEWNET
		p.flags["uts"] = unix.CLONE_NEWUTS // the host name goes with the network
	}
	if !pod.HostIPC(cfg) {
		p.flags["ipc"] = unix.CLONE_NEWIPC
	}
	if u, ok := pod.UserNamespace(cfg); ok {
		p.user = &u
	}
	return p, nil
}

func (p *plan) has(kind string) bool { return p.flags[kind] != 0 }

func (p *plan) path(kind string) string { return filepath.Join(p.dir, kind) }

func (p *plan) allFlags() uintptr {
	var all uintptr
	for _, f := range p.flags {
		all |= f
	}
	return all
}

func (p *plan) result() steps.Namespaces {
	n := steps.Namespaces{HostName: p.host}
	if p.has("net") {
		n.Net = p.path("net")
	}
	if p.has("ipc") {
		n.IPC = p.path("ipc")
	}
	if p.has("uts") {
		n.UTS = p.path("uts")
	}
	if p.user != nil {
		n.User = p.path("user")
	}
	return n
}
