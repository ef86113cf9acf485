// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	defaultUndoTimeout = time.Minute
	shortestBackoff    = time.Second
	longestBackoff     = 5 * time.Minute
	// recoverAtOnce is how many subjects of one workflow recover side by side.
	recoverAtOnce = 16
)

// Engine runs the flows of its workflows. All methods are safe for concurrent use.
type Engine struct {
	opts      Options
	journal   *batcher
	workflows map[string]*workflow
	order     []*workflow // as defined
	actions   map[string]Action
	bounds    []bound // each action once, lowest first
	closing   chan struct{}
	kick      chan struct{} // something got stuck
	feed      feed

	// mu guards the fields below, the map of workflows and the maps of subjects.
	// It is never held across a call that blocks, nor while taking a subject's mu.
	mu      sync.RWMutex
	booting bool
	booted  bool
	closed  bool
	moves   sync.WaitGroup
}

// New assembles the workflows of defs with cfg (by workflow, then flow) and
// checks everything. What it refuses in the configuration is a *ConfigError.
// The engine serves after Boot; it owns the journal from here on, unless New fails.
func New(o Options, defs []Definition, cfg map[string]map[string]FlowConfig) (*Engine, error) {
	if o.Journal == nil || o.Lookup == nil {
		return nil, errors.New("make an engine: Options.Journal and Options.Lookup must be set")
	}
	o.UndoTimeout = cmp.Or(o.UndoTimeout, defaultUndoTimeout)
	o.Backoff.Min = cmp.Or(o.Backoff.Min, shortestBackoff)
	o.Backoff.Max = max(o.Backoff.Min, cmp.Or(o.Backoff.Max, longestBackoff))
	known := slices.Sorted(slices.Values(o.Known))
	a := &assembly{lookup: o.Lookup, known: known, actions: map[string]Action{}}
	order, err := a.assemble(defs, cfg)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts: o, workflows: map[string]*workflow{}, order: order,
		actions: a.actions, bounds: a.order,
		closing: make(chan struct{}), kick: make(chan struct{}, 1),
	}
	for _, w := range order {
		e.workflows[w.name] = w
	}
	e.journal = newBatcher(o.Journal)
	return e, nil
}

// Boot prepares every action, reads the journal, takes down what a crash left
// half-way (every record that is climbing or descending; those of the workflow
// defined last first), and sweeps what no record knows. After it the engine
// serves. It fails if the journal cannot be read, if Options.Admit refuses a
// record, or if an action cannot prepare itself. Subjects that will not go down
// are stuck, not an error, and a record that cannot be decoded is a View with
// Damaged set. What Sweep could not do is told to the observers.
func (e *Engine) Boot(ctx context.Context) error {
	e.mu.Lock()
	again := e.booting
	e.booting = true
	e.mu.Unlock()
	if again {
		return errors.New("boot the engine: it was booted before")
	}
	if err := e.opts.Journal.Load(e.restore); err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	if err := e.examine(); err != nil {
		return fmt.Errorf("take over the journal: %w", err)
	}
	for _, b := range e.bounds {
		init, ok := b.action.(Initializer)
		if !ok {
			continue
		}
		if err := e.observe(ctx, Span{Flow: "init", Action: b.name}, init.Init); err != nil {
			return fmt.Errorf("prepare action %s: %w", b.name, err)
		}
	}
	for _, w := range slices.Backward(e.order) {
		if len(w.down) > 0 {
			e.recoverAll(ctx, w)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if _, err := e.sweep(ctx, false); err != nil && ctx.Err() != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.booted = true
	return nil
}

// examine shows all records to Options.Admit.
func (e *Engine) examine() error {
	if e.opts.Admit == nil {
		return nil
	}
	for _, w := range e.order {
		for _, v := range e.List(w.name) {
			if v.Damaged {
				continue
			}
			if err := guard(func() error { return e.opts.Admit(v) }); err != nil {
				return fmt.Errorf("%s %s: %w", v.Workflow, v.ID, err)
			}
		}
	}
	return nil
}

// restore puts one record of the journal into memory.
func (e *Engine) restore(key string, data []byte) error {
	rec, err := decode(key, data)
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.workflows[rec.Workflow]
	if w == nil { // of a version that had more workflows: kept and listed
		w = newWorkflow(rec.Workflow)
		e.workflows[w.name] = w
	}
	s := e.newSubject(w, rec)
	if err != nil {
		s.damage = err.Error()
		s.rec.Rungs = w.whole()
	} else if rec.Phase == Stuck {
		now := time.Now()
		s.rec.Retry = now // what it was stuck on may be gone
		s.rec.Since = now.Add(-max(0, now.Sub(s.rec.stuckSince())))
	}
	s.publish()
	w.subjects[rec.ID] = s
	if rec.Name != "" && s.damage == "" { // who asks for that name can know nothing of this one
		w.names[rec.Name] = s
	}
	return nil
}

// recoverAll takes down the subjects of w that a crash left on the way.
func (e *Engine) recoverAll(ctx context.Context, w *workflow) {
	var wg sync.WaitGroup
	places := make(chan struct{}, recoverAtOnce)
	for _, v := range e.List(w.name) {
		if ctx.Err() != nil || v.Damaged || (v.Phase != Climbing && v.Phase != Descending) {
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			e.recoverOne(ctx, e.find(w.name, v.ID))
		})
	}
	wg.Wait()
}

func (e *Engine) recoverOne(ctx context.Context, s *subject) {
	s.token <- struct{}{}
	defer s.release()
	r := s.snapshot()
	m := &move{s: s, way: s.w.way(r.Goal), rollback: true, cause: r.Cause}
	if r.Phase == Climbing {
		m.cause = "interrupted by a restart"
	}
	m.flow = m.way.name
	// The outcome is in the record.
	_ = e.goDown(context.WithoutCancel(ctx), m, r.Goal, nil)
}

// Close refuses new moves, waits for those in flight until ctx ends, and closes
// the journal. What is still moving then fails to journal and is recovered by
// the next Boot.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	if !e.closed {
		e.closed = true
		close(e.closing)
	}
	e.mu.Unlock()
	done := make(chan struct{})
	go func() {
		e.moves.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close the engine: moves are still in flight: %w", ctx.Err())
	}
	return errors.Join(err, e.journal.close())
}

// enter counts a move in; leave must follow unless it fails.
func (e *Engine) enter() error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.booted || e.closed {
		return ErrClosed
	}
	e.moves.Add(1)
	return nil
}

func (e *Engine) leave() { e.moves.Done() }

// find gives a subject that has begun to climb, or nil.
func (e *Engine) find(workflow, id string) *subject {
	e.mu.RLock()
	defer e.mu.RUnlock()
	w := e.workflows[workflow]
	if w == nil {
		return nil
	}
	if s := w.subjects[id]; s != nil && s.state.Load().view != nil {
		return s
	}
	return nil
}

// Get gives the view of one subject.
func (e *Engine) Get(workflow, id string) (*View, bool) {
	s := e.find(workflow, id)
	if s == nil {
		return nil, false
	}
	v := s.state.Load().view
	return v, v != nil
}

// List gives the views of all subjects in the order of their creation.
func (e *Engine) List(workflow string) []*View {
	e.mu.RLock()
	w := e.workflows[workflow]
	if w == nil {
		e.mu.RUnlock()
		return nil
	}
	subjects := slices.Collect(maps.Values(w.subjects))
	e.mu.RUnlock()
	views := make([]*View, 0, len(subjects))
	for _, s := range subjects {
		if v := s.state.Load().view; v != nil {
			views = append(views, v)
		}
	}
	slices.SortFunc(views, func(a, b *View) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return views
}

// ByName gives the view of the holder of a name.
func (e *Engine) ByName(workflow, name string) (*View, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	w := e.workflows[workflow]
	if w == nil || w.names[name] == nil {
		return nil, false
	}
	v := w.names[name].state.Load().view
	return v, v != nil
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Watch gives a channel that is closed at the next change of the subject, or
// is closed already if there is no such subject. Watch first, then look.
func (e *Engine) Watch(workflow, id string) <-chan struct{} {
	s := e.find(workflow, id)
	if s == nil {
		return closedChannel
	}
	st := s.state.Load()
	if st.view == nil {
		return closedChannel
	}
	return st.changed
}
