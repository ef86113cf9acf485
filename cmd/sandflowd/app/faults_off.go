// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

package app

import "github.com/sandflow-cri/sandflow/engine"

// faultObservers is empty: only binaries built with the tag faults can be made to fail.
func faultObservers() []engine.Observer { return nil }

// faultJournal is the journal as it is.
func faultJournal(j engine.Journal) engine.Journal { return j }
