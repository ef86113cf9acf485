// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// endStrays ends the plugins that are in an ADD for a pod of ours, which a daemon that has died
// has left. One that is being killed may still start another, so they are looked for until none
// is found.
func endStrays(pods string) error {
	for {
		found, err := bundle.KillAll(func(pid int) bool { return cni.Adding(pid, pods) })
		if err != nil {
			return fmt.Errorf("end the network plugins of an earlier daemon: %w", err)
		}
		if !found {
			return nil
		}
	}
}
