// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec is the action that turns a CRI request for a container into an OCI
// bundle: <ContainerDir>/config.json. The parts of the spec are in files by topic.
//
//	request, image, pod, volumes ──► newSpec ──► config.json ──► task
//
// It also has what else follows from a request or a bundle without running
// anything: Validate, Resources, ExecProcess, StopSignal, CgroupPaths.
package spec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

const (
	// Name is the name of the action in the configuration.
	Name = "spec"

	configFile = "config.json"
	// tempFile is fixed, so that undo finds it.
	tempFile = ".config.json.new"
	fileMode = 0o600
)

func init() {
	steps.Register(Name, func(s *steps.Services) engine.Action { return New(s.Config) })
}

// Action writes the bundle of a container.
type Action struct {
	config steps.Config
	host   func() *host
}

var (
	_ engine.Action = (*Action)(nil)
	_ engine.Needer = (*Action)(nil)
	_ engine.Filler = (*Action)(nil)

	_ engine.Sweeper = (*Action)(nil)
)

// New returns the action. The node is looked at when it first runs.
func New(c steps.Config) *Action { return &Action{config: c, host: detect} }

// Needs lists the slots that Do reads.
func (*Action) Needs() []engine.Key {
	return []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key(), steps.ContainerRootfs.Key(), steps.ContainerVolumes.Key()}
}

// Fills names the slot that Do sets.
func (*Action) Fills() engine.Key { return steps.ContainerSpec.Key() }

// Do makes the spec and writes it.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	in, err := a.inputs(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("make the OCI spec of container %s: %w", r.ID(), err)
	}
	b, err := newSpec(in, a.host())
	if err != nil {
		return fmt.Errorf("make the OCI spec of container %s: %w", r.ID(), err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write the OCI spec of container %s: %w", r.ID(), err)
	}
	bundle := a.config.ContainerDir(r.ID())
	if err := writeSpec(bundle, b); err != nil {
		return fmt.Errorf("write the OCI spec of container %s: %w", r.ID(), err)
	}
	return steps.ContainerSpec.Set(r, b.result(bundle))
}

func (a *Action) inputs(r *engine.Run) (input, error) {
	in := input{ID: r.ID(), Config: a.config}
	var errs [4]error
	in.Ctr, errs[0] = steps.ContainerRequest.Need(r)
	in.Pod, errs[1] = steps.ContainerPod.Need(r)
	in.Rootfs, errs[2] = steps.ContainerRootfs.Need(r)
	in.Volumes, errs[3] = steps.ContainerVolumes.Need(r)
	return in, errors.Join(errs[:]...)
}

// writeSpec writes config.json whole or not at all. It needs no sync: the state
// directory does not outlive a crash of the machine.
func writeSpec(bundle string, b *build) error {
	text, err := json.Marshal(b.spec)
	if err != nil {
		return err
	}
	if b.podConfig != nil { // else it is there
		err := pod.MakeDir(filepath.Dir(bundle))
		if err == nil {
			err = pod.MakePrivate(bundle, b.podConfig)
		}
		if err != nil {
			return err
		}
	}
	temp := filepath.Join(bundle, tempFile)
	if err := os.WriteFile(temp, text, fileMode); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(bundle, configFile))
}

// Undo removes the spec, and the bundle's directory if nothing else is in it: the
// root file system is another action's.
func (a *Action) Undo(_ context.Context, r *engine.Run) error {
	return removeSpec(a.config.ContainerDir(r.ID()))
}

// Sweep removes bundles that no record knows.
func (a *Action) Sweep(_ context.Context, s *engine.Sweep) error {
	all := filepath.Dir(a.config.ContainerDir("id"))
	entries, err := os.ReadDir(all)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bundles: %w", err)
	}
	for _, e := range entries {
		if bundle := filepath.Join(all, e.Name()); !s.Known(steps.Container, e.Name()) && exists(filepath.Join(bundle, configFile)) {
			s.Remove("bundle", bundle, func() error { return removeSpec(bundle) })
		}
	}
	return nil
}

func removeSpec(bundle string) error {
	for _, name := range []string{tempFile, configFile} {
		if err := os.Remove(filepath.Join(bundle, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the OCI spec: %w", err)
		}
	}
	err := unix.Rmdir(bundle)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("remove bundle %s: %w", bundle, err)
	}
	return nil
}
