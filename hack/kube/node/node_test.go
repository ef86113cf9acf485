// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// TestStandalone is the short form of what the cluster's checks are: a kubelet of its own on
// sandflow. The checks build on each other. The gates are for what kubelet has of CRI that it
// does not use by default.
func TestStandalone(t *testing.T) {
	if _, ok := harness.Here(); !ok {
		t.Skip("not in a laboratory: run \"make node-short\"")
	}
	c, err := cluster.Standalone(t.Context(), cluster.Options{FeatureGates: map[string]bool{"EventedPLEG": true, "CRIListStreaming": true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range New(c).Checks() {
		ok := t.Run(check.Name, func(t *testing.T) {
			if err := check.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
		if !ok {
			break
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
