// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Run is what an action sees of its subject during one move. It is not safe to
// keep after the action has returned.
type Run struct {
	workflow, flow, id string
	slots              slotStore
	action             string
	// limits apply in Do; an Undo reads freely, since slots are hints to it.
	limited bool
	needs   []Key
	fills   Key
}

// slotStore is where a Run reads and fills.
type slotStore interface {
	load(k Key) *box
	store(v Value)
	all() map[Key]*box
}

// ID is the subject's identity: every resource's name follows from it.
func (r *Run) ID() string { return r.id }

// Workflow is the ladder the subject stands on.
func (r *Run) Workflow() string { return r.workflow }

// Flow is the flow in progress; in a rollback it is the one that failed.
func (r *Run) Flow() string { return r.flow }

// NewRun makes a Run outside of an Engine, for tests of one action. With an
// action its Needs and Fills are enforced as in Do; nil lets everything
// through, as in Undo.
func NewRun(a Action, workflow, flow, id string, values ...Value) (*Run, error) {
	if err := check(values); err != nil {
		return nil, err
	}
	mem := &memorySlots{boxes: map[Key]*box{}}
	for _, v := range values {
		mem.store(v)
	}
	r := &Run{workflow: workflow, flow: flow, id: id, slots: mem, action: "action"}
	if a != nil {
		r.limit(a)
	}
	return r, nil
}

// Values returns everything set, in order of keys.
func (r *Run) Values() []Value {
	boxes := r.slots.all()
	values := make([]Value, 0, len(boxes))
	for _, k := range slices.Sorted(maps.Keys(boxes)) {
		values = append(values, Value{key: k, box: boxes[k]})
	}
	return values
}

// limit binds the run to what a declares.
func (r *Run) limit(a Action) {
	r.limited = true
	if n, ok := a.(Needer); ok {
		r.needs = n.Needs()
	}
	if f, ok := a.(Filler); ok {
		r.fills = f.Fills()
	}
}

func (r *Run) lookup(k Key) (*box, error) {
	if r.limited && k != r.fills && !slices.Contains(r.needs, k) {
		return nil, fmt.Errorf("read slot %s of %s: %s does not declare it in Needs", k, r.describe(), r.action)
	}
	return r.slots.load(k), nil
}

func (r *Run) set(v Value) error {
	if r.limited && v.key != r.fills {
		return fmt.Errorf("fill slot %s of %s: %s does not declare it in Fills", v.key, r.describe(), r.action)
	}
	r.slots.store(v)
	return nil
}

func (r *Run) describe() string { return r.workflow + " " + r.id }

// memorySlots is the store of a Run without an Engine.
type memorySlots struct {
	mu    sync.Mutex
	boxes map[Key]*box
}

func (m *memorySlots) load(k Key) *box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[k]
}

func (m *memorySlots) store(v Value) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[v.key] = v.box
}

func (m *memorySlots) all() map[Key]*box {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.boxes)
}
