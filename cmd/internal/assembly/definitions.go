// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package assembly puts the engine together from the configuration and the
// actions that are registered as plugins. The daemon runs what comes out; a
// check of a configuration file throws it away.
package assembly

import (
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// Image is the workflow of images; Pull its one flow, without a ladder.
const (
	Image = "image"
	Pull  = "pull"
)

// Definitions are the ladders of pods and containers, and the jobs of images.
func Definitions() []engine.Definition {
	return []engine.Definition{
		{
			Name:  steps.Sandbox,
			Given: []engine.Key{steps.PodRequest.Key()},
			Up:    []engine.FlowDef{{Name: steps.Create, To: steps.Ready}},
			Down: []engine.FlowDef{
				{Name: steps.Destroy, To: steps.Reserved},
				{Name: steps.Cleanup, To: steps.Ground},
			},
		},
		{
			Name:  steps.Container,
			Given: []engine.Key{steps.ContainerRequest.Key(), steps.ContainerPod.Key()},
			Up: []engine.FlowDef{
				{Name: steps.Create, To: steps.Created},
				{Name: steps.Start, To: steps.Running},
			},
			Down: []engine.FlowDef{
				{Name: steps.Stop, To: steps.Created},
				{Name: steps.Remove, To: steps.Ground},
			},
		},
		{Name: Image, Jobs: []string{Pull}},
	}
}
