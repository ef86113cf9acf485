// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package assembly

import "github.com/sandflow-cri/sandflow/engine"

// skippable is the action as it is: only binaries built with the tag faults can skip an undo.
func skippable(a engine.Action) engine.Action { return a }
