// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "sync"

// Sweep is handed to Sweepers. A Sweeper first lists what is there and then
// asks Known for each, since a record is older than the resources it knows.
type Sweep struct {
	known func(workflow, id string) bool
	dry   bool
	mu    sync.Mutex
	found []Found
}

// Found is a thing that no record knows.
type Found struct {
	Kind, Name string
	Error      string // why it could not be removed
}

// NewSweep makes a Sweep outside of an Engine, for tests.
func NewSweep(dryRun bool, known func(workflow, id string) bool) *Sweep {
	return &Sweep{known: known, dry: dryRun}
}

// Known says whether id has a record.
func (s *Sweep) Known(workflow, id string) bool { return s.known(workflow, id) }

// Remove removes what no record knows; in a dry run it only lists it.
func (s *Sweep) Remove(kind, name string, remove func() error) {
	f := Found{Kind: kind, Name: name}
	if !s.dry {
		if err := guard(remove); err != nil {
			f.Error = err.Error()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found = append(s.found, f)
}

// Found lists what was removed, or in a dry run would have been.
func (s *Sweep) Found() []Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Found(nil), s.found...)
}
