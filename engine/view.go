// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "time"

// Phase is what a subject is doing.
type Phase string

const (
	// Standing subjects are not moving. One that stands at Ground is half-made
	// and was left so because failover was off.
	Standing Phase = "standing"
	// Climbing subjects are on the way up.
	Climbing Phase = "climbing"
	// Descending subjects are on the way down, or being rolled back.
	Descending Phase = "descending"
	// Stuck subjects stopped on the way down and wait for the next try.
	Stuck Phase = "stuck"
)

// View is an immutable picture of a record; reading never waits for a move.
type View struct {
	Workflow, ID, Name string
	Station            string // the highest station that stands whole
	Phase              Phase  // what it is doing
	Error              string // why the last move failed
	Attempts           int    // failed tries of the descent that is stuck
	// Retry is when RunCleanup tries it again, Since when that descent got stuck first. Both
	// have a monotonic reading: how far away they are does not change when the clock is set.
	Retry, Since     time.Time
	Created, Changed time.Time
	Damaged          bool // the record could not be read; Error says why
	slots            map[Key]*box
}

//nolint:unparam // of Reader: a Run does refuse
func (v *View) lookup(k Key) (*box, error) { return v.slots[k], nil }

func (v *View) describe() string { return v.Workflow + " " + v.ID }

// NewView makes a View outside of an Engine, for tests. It takes the fields of
// like and the values.
func NewView(like View, values ...Value) (*View, error) {
	if err := check(values); err != nil {
		return nil, err
	}
	like.slots = make(map[Key]*box, len(values))
	for _, v := range values {
		like.slots[v.key] = v.box
	}
	return &like, nil
}
