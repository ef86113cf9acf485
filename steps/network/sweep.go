// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// gcTimeout bounds the GC verb at boot: a plugin that hangs must not keep the node from starting.
const gcTimeout = 10 * time.Second

// Init ends what an earlier daemon has left of an ADD, and lets the plugins that know the GC
// verb release what belongs to no pod of ours, for instance after the state was wiped. That this
// fails is logged only.
func (a *Action) Init(ctx context.Context) error {
	if err := errors.Join(endStrays(a.cfg.PodsDir()), a.store.clean()); err != nil {
		return err
	}
	ids, err := a.store.list()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, gcTimeout)
	defer cancel()
	if err := a.nets.GC(ctx, ids); err != nil {
		klog.FromContext(ctx).Error(err, "Network plugins could not collect garbage")
	}
	return ctx.Err()
}

// Sweep detaches pods that no record knows, and removes the masquerade rules of pods that are
// not attached: those that we have a record of, and nobody's of the networks that we collect.
func (a *Action) Sweep(ctx context.Context, s *engine.Sweep) error {
	rules, listing := a.nets.Masquerades(ctx)
	ids, err := a.store.list() // after the rules, which are made after the file
	if err != nil {
		return err
	}
	for _, m := range rules {
		if !slices.Contains(ids, m.ID) && (m.Ours || s.Known(steps.Sandbox, m.ID)) {
			s.Remove("masquerade rules", m.ID, func() error { return a.nets.RemoveMasquerade(ctx, m) })
		}
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !s.Known(steps.Sandbox, id) {
			s.Remove("network attachment", id, func() error { return a.detach(ctx, id) })
		}
	}
	return listing
}
