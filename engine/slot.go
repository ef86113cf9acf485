// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
)

// Key names a slot.
type Key string

// Slot is a typed place for one value of a subject. Actions pass values to
// later steps through slots and nothing else. Values are kept in the subject's
// journal record as JSON, so T must survive a JSON round trip, and a value must
// not be changed after it was set.
//
// A value outlives the action that filled it: after that action was undone the
// value still says what had been there. View.Station says what stands.
//
// Slots are package variables, made once by NewSlot.
type Slot[T any] struct{ key Key }

// Reader is a Run or a View: what slots are read from.
type Reader interface {
	// lookup returns nil if nothing was set.
	lookup(k Key) (*box, error)
	describe() string
}

// Value is a slot with a value for it, made by Slot.With.
type Value struct {
	key Key
	box *box
	err error
}

// box holds one value: as JSON always, and decoded from the first use on.
type box struct {
	raw     json.RawMessage
	decoded atomic.Pointer[any]
}

var slots = struct {
	sync.Mutex
	keys map[Key]bool
}{keys: map[Key]bool{}}

// NewSlot returns the slot called key. It panics if key is taken: two slots of
// one name would read each other's values.
func NewSlot[T any](key Key) Slot[T] {
	slots.Lock()
	defer slots.Unlock()
	if key == "" || slots.keys[key] {
		panic(fmt.Sprintf("engine: slot %q is made twice or has no name", key))
	}
	slots.keys[key] = true
	return Slot[T]{key: key}
}

// Key is the name of the slot, for Needs and Fills.
func (s Slot[T]) Key() Key { return s.key }

// Get reads the slot of a Run or a View; ok is false if nothing was set.
// It returns an error when the stored JSON does not decode as T, or when an
// action reads in Do what it did not declare in Needs.
func (s Slot[T]) Get(r Reader) (v T, ok bool, err error) {
	b, err := r.lookup(s.key)
	if err != nil || b == nil {
		return v, false, err
	}
	if p := b.decoded.Load(); p != nil {
		if typed, is := (*p).(T); is {
			return typed, true, nil
		}
	}
	if err := json.Unmarshal(b.raw, &v); err != nil {
		var zero T
		return zero, false, fmt.Errorf("read slot %s of %s: %w", s.key, r.describe(), err)
	}
	cached := any(v)
	b.decoded.Store(&cached)
	return v, true, nil
}

// Need is Get for a slot that must be there; the error names the slot and the subject.
func (s Slot[T]) Need(r Reader) (T, error) {
	v, ok, err := s.Get(r)
	if err == nil && !ok {
		err = fmt.Errorf("read slot %s of %s: %w", s.key, r.describe(), ErrUnset)
	}
	return v, err
}

// Set fills the slot; only the one that the running action declared in Fills.
func (s Slot[T]) Set(r *Run, v T) error {
	val := s.With(v)
	if val.err != nil {
		return fmt.Errorf("fill slot %s of %s: %w", s.key, r.describe(), val.err)
	}
	return r.set(val)
}

// With pairs the slot with a value, for Climb and Amend.
func (s Slot[T]) With(v T) Value {
	raw, err := json.Marshal(v)
	if err != nil {
		return Value{key: s.key, err: err}
	}
	cached := any(v)
	b := &box{raw: raw}
	b.decoded.Store(&cached)
	return Value{key: s.key, box: b}
}

// check refuses values that did not encode.
func check(values []Value) error {
	for _, v := range values {
		if v.err != nil {
			return fmt.Errorf("encode slot %s: %w", v.key, v.err)
		}
		if v.box == nil {
			return fmt.Errorf("encode slot %s: %w", v.key, ErrUnset)
		}
	}
	return nil
}
