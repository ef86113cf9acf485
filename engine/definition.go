// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

const (
	// Ground is where a ladder begins; a subject there has no record.
	Ground = ""
	// Reserved is the station without steps below it: everything is undone, the
	// record and its name stay.
	Reserved = "reserved"
)

// Definition of a workflow: a ladder from Ground upward.
type Definition struct {
	Name  string
	Given []Key     // slots that the caller of the first Climb gives
	Up    []FlowDef // in order from the ground: each starts at the station where the one before it ended
	Down  []FlowDef // in order from the top
	Jobs  []string  // flows without a ladder: limited and observed only
}

// FlowDef is a flow of a ladder: its name and the station where it ends.
// A station reached going down is one reached going up, or Reserved, or Ground.
type FlowDef struct{ Name, To string }

// FlowConfig is the part of a flow that the configuration sets.
type FlowConfig struct {
	Concurrent int        // in flight at once; 0 is unlimited
	Queue      int        // how many more may wait, within the caller's deadline
	Failover   bool       // up flows: roll back on failure
	Steps      [][]string // names of actions; for a down flow optional: the mirror of the up flows
}

// Options of New.
type Options struct {
	// Journal is OpenBolt's or a fake.
	Journal Journal
	// Observers are called around every flow and action, the first outermost.
	Observers []Observer
	// Lookup finds an action by name.
	Lookup func(name string) (Action, bool)
	// Known are the names of all actions, for error texts.
	Known []string
	// Admit, if set, is shown every record that could be read before Boot does anything;
	// its error ends Boot.
	Admit func(v *View) error
	// UndoTimeout bounds one Undo; default 1 minute.
	UndoTimeout time.Duration
	// Backoff of the retries of stuck subjects; defaults 1 s and 5 minutes.
	Backoff struct{ Min, Max time.Duration }
}

// ClimbOptions of Climb.
type ClimbOptions struct {
	// Name is reserved by a first climb; empty reserves none.
	Name string
	// Values for slots; a first climb must give all of Definition.Given.
	Values []Value
	// Failover overrides the flow's configuration.
	Failover *bool
	// Admit, if there, is asked by a climb that is not a first one when nobody else
	// moves the subject and nothing is entered yet. Its error refuses the climb.
	Admit func(*View) error
}

// DescendOptions of Descend.
type DescendOptions struct {
	// Interrupt cancels a climb in flight on the subject.
	Interrupt bool
	// Values are journaled with the beginning of the descent.
	Values []Value
}
