// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
	"github.com/sandflow-cri/sandflow/hack/kube/node"
)

// nodeShow starts a node without control plane, shows a static pod on it, and closes the node.
func nodeShow(ctx context.Context, o cluster.Options) error {
	s := &show{out: o.Out}
	o.Out = nil
	var c *cluster.Cluster
	s.play(ctx, []step{{"A node is ready: kubelet on its own, on sandflow", func(ctx context.Context) (_ string, err error) {
		c, err = cluster.Standalone(ctx, o)
		return "", err
	}}})
	if c == nil {
		return s.end()
	}
	for _, check := range node.New(c).Checks() {
		s.play(ctx, []step{{check.Name, func(ctx context.Context) (string, error) { return "", check.Run(ctx) }}})
	}
	s.one(ctx, step{"The node goes, and nothing is left", func(ctx context.Context) (string, error) { return "", c.Close(ctx) }})
	return s.end()
}
