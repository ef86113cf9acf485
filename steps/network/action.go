// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package network is the action that attaches a pod to its networks.
package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/pod"
)

func init() {
	steps.Register("network", func(s *steps.Services) engine.Action { return New(s.Config, s.CNI) })
}

// Networks is what the action needs of *cni.Network.
type Networks interface {
	Prepare(ctx context.Context, a cni.Attachment) (json.RawMessage, error)
	Attach(ctx context.Context, a cni.Attachment) (cni.Result, error)
	Detach(ctx context.Context, a cni.Attachment) error
	GC(ctx context.Context, keep []string) error
	Masquerades(ctx context.Context) ([]cni.Masquerade, error)
	RemoveMasquerade(ctx context.Context, m cni.Masquerade) error
}

// Action is the action "network". Its resource is all that the plugins made
// for the pod; <Root>/networks/<id>.json, written before they run, says with
// what they ran. It outlives a reboot, as leases do.
type Action struct {
	cfg   steps.Config
	nets  Networks
	store store
}

var (
	_ engine.Action      = (*Action)(nil)
	_ engine.Needer      = (*Action)(nil)
	_ engine.Filler      = (*Action)(nil)
	_ engine.Conditional = (*Action)(nil)
	_ engine.Initializer = (*Action)(nil)
	_ engine.Sweeper     = (*Action)(nil)
)

// New returns the action.
func New(c steps.Config, nets Networks) *Action {
	return &Action{cfg: c, nets: nets, store: store{dir: Dir(c)}}
}

// Needs is part of engine.Needer.
func (a *Action) Needs() []engine.Key {
	return []engine.Key{steps.PodRequest.Key(), steps.PodNamespaces.Key()}
}

// Fills is part of engine.Filler.
func (a *Action) Fills() engine.Key { return steps.PodNetwork.Key() }

// Applies is part of engine.Conditional: not to pods on the node's network.
func (a *Action) Applies(r *engine.Run) bool {
	req, ok, err := steps.PodRequest.Get(r)
	return err != nil || !ok || !pod.HostNetwork(req.Config.M)
}

// Do attaches the pod.
func (a *Action) Do(ctx context.Context, r *engine.Run) error {
	req, err := steps.PodRequest.Need(r)
	if err != nil {
		return err
	}
	if pod.HostNetwork(req.Config.M) {
		return nil
	}
	ns, err := steps.PodNamespaces.Need(r)
	if err != nil {
		return err
	}
	at, err := attachment(a.cfg, r.ID(), req.Config.M, ns)
	if err != nil {
		return err
	}
	if at.Saved, err = a.nets.Prepare(ctx, at); err != nil {
		return err
	}
	if err := a.store.put(r.ID(), at.Saved); err != nil {
		return fmt.Errorf("keep what %s is attached with: %w", at, err)
	}
	res, err := a.nets.Attach(ctx, at)
	if err != nil {
		return err
	}
	return steps.PodNetwork.Set(r, steps.Network{IPs: res.IPs, Results: res.Raw})
}

// Undo detaches the pod with the configuration it was attached with. Without
// the file it was not attached, or is detached already, and no plugin runs.
func (a *Action) Undo(ctx context.Context, r *engine.Run) error { return a.detach(ctx, r.ID()) }

func (a *Action) detach(ctx context.Context, id string) error {
	saved, err := a.store.get(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what pod %s is attached with: %w", id, err)
	}
	err = a.nets.Detach(ctx, cni.Attachment{ID: id, Saved: saved})
	var partly *cni.DetachError
	if errors.As(err, &partly) && partly.Remaining != nil {
		// What is detached must not be detached a second time.
		return errors.Join(err, a.store.put(id, partly.Remaining))
	}
	if err != nil {
		return err
	}
	return a.store.remove(id)
}
