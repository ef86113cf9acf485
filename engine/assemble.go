// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// assembly makes checked workflows of definitions and configuration. Whatever
// it refuses is a *ConfigError.
type assembly struct {
	lookup  func(string) (Action, bool)
	known   []string
	actions map[string]Action
	order   []bound // each action once, lowest first
}

func (a *assembly) assemble(defs []Definition, cfg map[string]map[string]FlowConfig) ([]*workflow, error) {
	byName := map[string]bool{}
	workflows := make([]*workflow, 0, len(defs))
	for _, d := range defs {
		if d.Name == "" || strings.Contains(d.Name, "/") || byName[d.Name] {
			return nil, &ConfigError{Path: "workflows." + d.Name, Msg: "the workflow has no name, a name with a slash, or is defined twice"}
		}
		byName[d.Name] = true
		w, err := a.workflow(d, cfg[d.Name])
		if err != nil {
			return nil, err
		}
		workflows = append(workflows, w)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg)) {
		if !byName[name] {
			return nil, &ConfigError{Path: "workflows." + name, Msg: "unknown workflow", Known: slices.Sorted(maps.Keys(byName))}
		}
	}
	return workflows, nil
}

func (a *assembly) workflow(d Definition, cfg map[string]FlowConfig) (*workflow, error) {
	w := newWorkflow(d.Name)
	w.given = slices.Clone(d.Given)
	if err := shape(d, cfg); err != nil {
		return nil, err
	}
	ladder := &ladder{assembly: a, seen: map[string]string{}, filled: map[Key]string{}}
	for _, k := range d.Given {
		ladder.filled[k] = "the caller"
	}
	base := Ground
	for i, fd := range d.Up {
		if _, taken := w.levels[fd.To]; taken {
			return nil, &ConfigError{Path: "workflows." + d.Name + "." + fd.Name, Msg: fmt.Sprintf("station %q is reached twice", fd.To)}
		}
		w.levels[fd.To] = i + 2
		f := newFlow(w, fd.Name, cfg[fd.Name])
		f.base, f.to, f.failover = base, fd.To, cfg[fd.Name].Failover
		if err := ladder.climb(f, cfg[fd.Name].Steps); err != nil {
			return nil, err
		}
		w.up = append(w.up, f)
		base = fd.To
	}
	if err := downs(w, d.Down, cfg); err != nil {
		return nil, err
	}
	for _, name := range d.Jobs {
		if len(cfg[name].Steps) > 0 {
			return nil, &ConfigError{Path: "workflows." + d.Name + "." + name + ".steps", Msg: "this flow has no steps"}
		}
		w.jobs = append(w.jobs, newFlow(w, name, cfg[name]))
	}
	return w, nil
}

// shape checks what can be said without looking at the steps.
func shape(d Definition, cfg map[string]FlowConfig) error {
	var flows []string
	for _, fd := range slices.Concat(d.Up, d.Down) {
		flows = append(flows, fd.Name)
	}
	flows = append(flows, d.Jobs...)
	for i, name := range flows {
		if name == "" || slices.Contains(flows[:i], name) {
			return &ConfigError{Path: "workflows." + d.Name + "." + name, Msg: "the flow has no name or is defined twice"}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg)) {
		path := "workflows." + d.Name + "." + name
		switch c := cfg[name]; {
		case !slices.Contains(flows, name):
			return &ConfigError{Path: path, Msg: "unknown flow", Known: slices.Sorted(slices.Values(flows))}
		case c.Concurrent < 0:
			return &ConfigError{Path: path + ".concurrent", Msg: fmt.Sprintf("%d is negative; 0 is unlimited", c.Concurrent)}
		case c.Queue < 0:
			return &ConfigError{Path: path + ".queue", Msg: fmt.Sprintf("%d is negative; 0 is no queue", c.Queue)}
		}
	}
	return nil
}

func newFlow(w *workflow, name string, c FlowConfig) *flow {
	return &flow{w: w, name: name, limiter: &limiter{name: w.name + "." + name, limit: c.Concurrent, queue: c.Queue}}
}

// ladder checks the up flows of one workflow, from the ground up.
type ladder struct {
	*assembly
	seen   map[string]string // action to the path of its place
	filled map[Key]string    // slot to who fills it
}

func (l *ladder) climb(f *flow, steps [][]string) error {
	if len(steps) == 0 {
		return &ConfigError{Path: f.path() + ".steps", Msg: "the flow has no steps", Known: l.known}
	}
	for i, step := range steps {
		if len(step) == 0 {
			return &ConfigError{Path: fmt.Sprintf("%s.steps[%d]", f.path(), i), Msg: "the step is empty", Known: l.known}
		}
		bounds := make([]bound, len(step))
		for j, name := range step {
			b, err := l.bind(fmt.Sprintf("%s.steps[%d][%d]", f.path(), i, j), name)
			if err != nil {
				return err
			}
			bounds[j] = b
		}
		// What this step fills is there for the next one only.
		for j, b := range bounds {
			if err := l.fill(f, fmt.Sprintf("%s.steps[%d][%d]", f.path(), i, j), b); err != nil {
				return err
			}
		}
		f.steps = append(f.steps, bounds)
	}
	return nil
}

// bind finds an action and checks that it is here for the first time and that
// its needs are filled.
func (l *ladder) bind(path, name string) (bound, error) {
	action, ok := l.actions[name]
	if !ok {
		if action, ok = l.lookup(name); !ok || action == nil {
			return bound{}, &ConfigError{Path: path, Msg: fmt.Sprintf("unknown action %q", name), Known: l.known}
		}
		l.actions[name] = action
		l.order = append(l.order, bound{name, action})
	}
	if first, twice := l.seen[name]; twice {
		return bound{}, &ConfigError{Path: path, Msg: fmt.Sprintf("action %q is already at %s", name, first)}
	}
	l.seen[name] = path
	if n, ok := action.(Needer); ok {
		for _, k := range n.Needs() {
			if l.filled[k] == "" {
				return bound{}, &ConfigError{Path: path, Msg: fmt.Sprintf("action %q needs slot %q, which no earlier step fills", name, k)}
			}
		}
	}
	return bound{name, action}, nil
}

func (l *ladder) fill(f *flow, path string, b bound) error {
	filler, ok := b.action.(Filler)
	if !ok {
		return nil
	}
	k := filler.Fills()
	if who := l.filled[k]; who != "" {
		return &ConfigError{Path: path, Msg: fmt.Sprintf("action %q fills slot %q, which is filled by %s", b.name, k, who)}
	}
	l.filled[k] = fmt.Sprintf("action %q", b.name)
	f.fills = append(f.fills, k)
	return nil
}

// downs checks the down flows, from the top down. Each has to undo all actions
// between its station and the one where the flow before it ended.
func downs(w *workflow, defs []FlowDef, cfg map[string]FlowConfig) error {
	var plan [][]string
	custom, top := false, len(w.up)
	for _, d := range defs {
		f := newFlow(w, d.Name, cfg[d.Name])
		f.limiter.queue = endless
		if _, ok := w.levels[d.To]; !ok || w.depth(d.To) > top {
			return &ConfigError{Path: f.path(), Msg: fmt.Sprintf("it ends at station %q, which is not below the flow before it", d.To)}
		}
		f.to = d.To
		mirror := mirror(w.up[w.depth(d.To):top])
		steps := cfg[d.Name].Steps
		if len(steps) == 0 {
			plan = slices.Concat(plan, mirror)
		} else {
			if err := covers(f, steps, mirror, slices.Concat(plan, mirror)); err != nil {
				return err
			}
			custom = true
			plan = slices.Concat(without(plan, steps), steps)
		}
		f.plan, f.custom, top = plan, custom, w.depth(d.To)
		w.down = append(w.down, f)
	}
	if len(w.up) > 0 && (len(w.down) == 0 || w.down[len(w.down)-1].to != Ground) {
		return &ConfigError{Path: "workflows." + w.name, Msg: "no flow goes down to the ground"}
	}
	return nil
}

// mirror is the steps of up flows from the top.
func mirror(up []*flow) [][]string {
	var steps [][]string
	for _, f := range slices.Backward(up) {
		for _, step := range slices.Backward(f.steps) {
			steps = append(steps, names(step))
		}
	}
	return steps
}

// covers refuses steps that leave out an action of must, have one that is not
// in may, or have one twice.
func covers(f *flow, steps, must, may [][]string) error {
	allowed := slices.Concat(may...)
	var have []string
	for i, step := range steps {
		if len(step) == 0 {
			return &ConfigError{Path: fmt.Sprintf("%s.steps[%d]", f.path(), i), Msg: "the step is empty", Known: allowed}
		}
		for j, name := range step {
			path := fmt.Sprintf("%s.steps[%d][%d]", f.path(), i, j)
			if !slices.Contains(allowed, name) {
				return &ConfigError{Path: path, Msg: fmt.Sprintf("action %q is in no flow that %s undoes", name, f.name), Known: allowed}
			}
			if slices.Contains(have, name) {
				return &ConfigError{Path: path, Msg: fmt.Sprintf("action %q is in the flow twice", name)}
			}
			have = append(have, name)
		}
	}
	for _, name := range slices.Concat(must...) {
		if !slices.Contains(have, name) {
			return &ConfigError{Path: f.path() + ".steps", Msg: fmt.Sprintf("action %q is left out: what goes up must come down", name), Known: allowed}
		}
	}
	return nil
}

// without is plan less the actions of steps.
func without(plan, steps [][]string) [][]string {
	named := slices.Concat(steps...)
	var left [][]string
	for _, step := range plan {
		kept := slices.DeleteFunc(slices.Clone(step), func(a string) bool { return slices.Contains(named, a) })
		if len(kept) > 0 {
			left = append(left, kept)
		}
	}
	return left
}
