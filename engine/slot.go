// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

// Key names a slot.
type Key string

// Slot is a typed place for one value of a subject. Actions pass values to
// later steps through slots and nothing else. Values are kept in the subject's
// journal record as JSON, so T must survive a JSON round trip, and a value must
// not be changed after it was set.
//
// Slots are package variables, made once by NewSlot.
type Slot[T any] struct{ key Key }

// NewSlot returns the slot called key. It panics if key is taken: two slots of
// one name would read each other's values.
func NewSlot[T any](key Key) Slot[T]

// Key is the name of the slot, for Needs and Fills.
func (s Slot[T]) Key() Key

// Get reads the slot of a Run or a View; ok is false if nothing was set.
// It returns an error when the stored JSON does not decode as T, or when an
// action reads in Do what it did not declare in Needs.
func (s Slot[T]) Get(r Reader) (v T, ok bool, err error)

// Need is Get for a slot that must be there; the error names the slot and the subject.
func (s Slot[T]) Need(r Reader) (T, error)

// Set fills the slot; only the one that the running action declared in Fills.
func (s Slot[T]) Set(r *Run, v T) error

// With pairs the slot with a value, for Climb and Amend.
func (s Slot[T]) With(v T) Value
