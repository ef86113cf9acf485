// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

// workflow is a Definition with its configuration, checked. Immutable except
// for the subjects.
type workflow struct {
	name   string
	given  []Key
	up     []*flow
	down   []*flow
	jobs   []*flow
	levels map[string]int

	// Guarded by Engine.mu.
	subjects map[string]*subject
	names    map[string]*subject
}

type flow struct {
	w        *workflow
	name     string
	base, to string // a down flow has no base
	steps    [][]bound
	fills    []Key
	failover bool
	// plan is, for a down flow, the whole way from the top, and custom is set if
	// any of it is not the mirror of going up.
	plan    [][]string
	custom  bool
	limiter *limiter
}

// bound is an action of a step.
type bound struct {
	name   string
	action Action
}

func newWorkflow(name string) *workflow {
	return &workflow{
		name:     name,
		levels:   map[string]int{Ground: 0, Reserved: 1},
		subjects: map[string]*subject{},
		names:    map[string]*subject{},
	}
}

// level orders stations: the ground 0, reserved 1, then those reached going up.
// A station that a newer version has defined counts as the ground.
func (w *workflow) level(station string) int { return w.levels[station] }

// depth is how many flows lie below a station: none below ground and reserved.
func (w *workflow) depth(station string) int { return max(0, w.level(station)-1) }

func (w *workflow) lower(a, b string) string {
	if w.level(b) < w.level(a) {
		return b
	}
	return a
}

// above says whether a step of the flow that began at base is undone by a
// descent to goal.
func (w *workflow) above(base, goal string) bool { return w.depth(base) >= w.depth(goal) }

// way is the down flow whose order a descent to goal follows.
func (w *workflow) way(goal string) *flow {
	for _, f := range w.down {
		if w.depth(f.to) <= w.depth(goal) {
			return f
		}
	}
	return nil
}

// next gives the actions to undo next on the way to goal, and the station below
// them; none if there is nothing more to undo.
func (w *workflow) next(f *flow, rungs []rung, goal string) (actions []string, base string) {
	if f != nil && f.custom {
		for _, step := range f.plan {
			for _, g := range rungs {
				for _, a := range g.Actions {
					if w.above(g.Base, goal) && slices.Contains(step, a) {
						actions, base = append(actions, a), w.lowerOf(actions, base, g.Base)
					}
				}
			}
			if len(actions) > 0 {
				return actions, base
			}
		}
	}
	for _, g := range slices.Backward(rungs) {
		if w.above(g.Base, goal) {
			return slices.Clone(g.Actions), g.Base
		}
	}
	return nil, ""
}

func (w *workflow) lowerOf(sofar []string, base, other string) string {
	if len(sofar) == 0 {
		return other
	}
	return w.lower(base, other)
}

// whole is the ladder as if every step had been entered, for a subject whose
// record cannot say.
func (w *workflow) whole() []rung {
	var rungs []rung
	for _, f := range w.up {
		rungs = append(rungs, f.rungs()...)
	}
	return rungs
}

// rungs is the record of an up flow whose steps all may have been entered.
func (f *flow) rungs() []rung {
	list := make([]rung, len(f.steps))
	for i, step := range f.steps {
		list[i] = rung{Base: f.base, Actions: names(step)}
	}
	return list
}

func names(step []bound) []string {
	list := make([]string, len(step))
	for i, b := range step {
		list[i] = b.name
	}
	return list
}

func (f *flow) path() string { return "workflows." + f.w.name + "." + f.name }

// stepNames are the steps in the order in which the flow takes them.
func (f *flow) stepNames() [][]string {
	if f.plan != nil {
		return f.plan
	}
	list := make([][]string, len(f.steps))
	for i, step := range f.steps {
		list[i] = names(step)
	}
	return list
}
