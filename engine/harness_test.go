// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

var (
	request = engine.NewSlot[string]("test.request")
	address = engine.NewSlot[string]("test.address")
	exit    = engine.NewSlot[int]("test.exit")

	unencodable = engine.NewSlot[chan int]("test.unencodable")

	errBoom = errors.New("boom")
)

// The pod's ladder is three steps, the container's two flows of one and two.
var (
	podDef = engine.Definition{
		Name: "pod", Given: []engine.Key{request.Key()},
		Up:   []engine.FlowDef{{Name: "create", To: "ready"}},
		Down: []engine.FlowDef{{Name: "destroy", To: engine.Reserved}, {Name: "cleanup", To: engine.Ground}},
	}
	ctrDef = engine.Definition{
		Name: "ctr", Given: []engine.Key{request.Key()},
		Up:   []engine.FlowDef{{Name: "create", To: "created"}, {Name: "start", To: "running"}},
		Down: []engine.FlowDef{{Name: "stop", To: "created"}, {Name: "remove", To: engine.Ground}},
	}
	imageDef = engine.Definition{Name: "image", Jobs: []string{"pull"}}
)

// steps gives the place of each action, for sorting events of one step.
var steps = map[string]int{"files": 0, "ns": 0, "net": 1, "shim": 2, "rootfs": 3, "spec": 4, "task": 5}

type config = map[string]map[string]engine.FlowConfig

func defaults() config {
	return config{
		"pod": {"create": {Failover: true, Steps: [][]string{{"files", "ns"}, {"net"}, {"shim"}}}},
		"ctr": {
			"create": {Failover: true, Steps: [][]string{{"rootfs"}, {"spec"}}},
			"start":  {Failover: true, Steps: [][]string{{"task"}}},
		},
		"image": {"pull": {}},
	}
}

// world is what the actions change.
type world struct {
	mu     sync.Mutex
	events []string
	made   map[string]bool
	fail   map[string]error           // by event; stays
	hook   map[string]func(ctx) error // by event
	skip   map[string]bool            // actions that do not apply
	dead   bool                       // the daemon was killed: nothing has any effect
	// killAt is the number of effects after which the daemon is dead; 0 is never.
	killAt, effects int
}

type ctx = context.Context

func newWorld() *world {
	return &world{made: map[string]bool{}, fail: map[string]error{}, hook: map[string]func(ctx) error{}, skip: map[string]bool{}}
}

// happen is one Do or Undo.
func (w *world) happen(c ctx, verb, action, id string) error {
	event := verb + "-" + action
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		return errors.New("dead")
	}
	w.events = append(w.events, event)
	err, hook := w.fail[event], w.hook[event]
	// A do that fails has made its thing all the same; an undo that fails has not removed it.
	if verb == "do" {
		w.made[action+" "+id] = true
	} else if err == nil {
		delete(w.made, action+" "+id)
	}
	w.effects++
	if w.effects == w.killAt {
		w.dead = true
		err = errors.New("dead")
	}
	w.mu.Unlock()
	if hook != nil {
		return hook(c)
	}
	return err
}

// story is the events in order, those of one step sorted.
func (w *world) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := slices.Clone(w.events)
	key := func(s string) (string, int) {
		verb, action, _ := strings.Cut(s, "-")
		return verb, steps[action]
	}
	for i := 1; i < len(list); i++ {
		for j := i; j > 0; j-- {
			v1, s1 := key(list[j-1])
			v2, s2 := key(list[j])
			if v1 != v2 || s1 != s2 || list[j-1] <= list[j] {
				break
			}
			list[j-1], list[j] = list[j], list[j-1]
		}
	}
	return strings.Join(list, " ")
}

func (w *world) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = nil
}

func (w *world) left() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.made))
}

func (w *world) set(event string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.fail, event)
		return
	}
	w.fail[event] = err
}

func (w *world) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// act is an action of the world.
type act struct {
	w    *world
	name string
}

func (a *act) Do(c ctx, r *engine.Run) error   { return a.w.happen(c, "do", a.name, r.ID()) }
func (a *act) Undo(c ctx, r *engine.Run) error { return a.w.happen(c, "undo", a.name, r.ID()) }
func (a *act) Applies(*engine.Run) bool        { return !a.w.skip[a.name] }

// netAct fills a slot that shimAct needs.
type netAct struct{ act }

func (a *netAct) Fills() engine.Key { return address.Key() }

func (a *netAct) Do(c ctx, r *engine.Run) error {
	if err := a.act.Do(c, r); err != nil {
		return err
	}
	return address.Set(r, "10.0.0.1")
}

type shimAct struct{ act }

func (a *shimAct) Needs() []engine.Key { return []engine.Key{address.Key(), request.Key()} }

func (a *shimAct) Do(c ctx, r *engine.Run) error {
	if _, err := request.Need(r); err != nil {
		return err
	}
	if !a.w.skip["net"] {
		if _, err := address.Need(r); err != nil {
			return err
		}
	}
	return a.act.Do(c, r)
}

func (w *world) lookup(name string) (engine.Action, bool) {
	switch _, ok := steps[name]; {
	case !ok:
		return nil, false
	case name == "net":
		return &netAct{act{w, name}}, true
	case name == "shim":
		return &shimAct{act{w, name}}, true
	}
	return &act{w, name}, true
}

// memory is a journal that can fail or kill the daemon at a write.
type memory struct {
	mu     sync.Mutex
	data   map[string][]byte
	writes int
	// at is called with the number of each write, from 1. It says whether the
	// write reaches the disk, and what the engine is told.
	at func(n int) (applied bool, err error)
}

func newMemory() *memory { return &memory{data: map[string][]byte{}} }

func (m *memory) Load(f func(string, []byte) error) error {
	for k, v := range maps.All(maps.Clone(m.data)) {
		if err := f(k, slices.Clone(v)); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Write(changes []engine.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	applied, err := true, error(nil)
	if m.at != nil {
		applied, err = m.at(m.writes)
	}
	for _, c := range changes {
		if !applied {
			break
		}
		if c.Data == nil {
			delete(m.data, c.Key)
		} else {
			m.data[c.Key] = slices.Clone(c.Data)
		}
	}
	return err
}

func (m *memory) Close() error { return nil }

func (m *memory) failing(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = func(int) (bool, error) { return err == nil, err }
}

// bench is an engine over a world.
type bench struct {
	*engine.Engine
	t *testing.T
	w *world
	j *memory
}

func options(w *world, j engine.Journal) engine.Options {
	return engine.Options{
		Journal: j, Lookup: w.lookup, Known: slices.Collect(maps.Keys(steps)),
		UndoTimeout: time.Minute,
	}
}

func start(t *testing.T, o engine.Options, cfg config) *engine.Engine {
	t.Helper()
	e, err := engine.New(o, []engine.Definition{podDef, ctrDef, imageDef}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

func newBench(t *testing.T) *bench {
	t.Helper()
	w, j := newWorld(), newMemory()
	return &bench{Engine: start(t, options(w, j), defaults()), t: t, w: w, j: j}
}

func given(name string) engine.ClimbOptions {
	return engine.ClimbOptions{Name: name, Values: []engine.Value{request.With("please")}}
}

// climb takes the subject through the flows, in words: "pod create p1".
func (b *bench) do(c ctx, words string) error {
	f := strings.Fields(words)
	workflow, flow, id := f[0], f[1], f[2]
	if flow == "create" {
		return b.Climb(c, workflow, flow, id, given("name-"+id))
	}
	if flow == "start" {
		return b.Climb(c, workflow, flow, id, engine.ClimbOptions{})
	}
	return b.Descend(c, workflow, flow, id, engine.DescendOptions{})
}

func (b *bench) must(words string) {
	b.t.Helper()
	if err := b.do(b.t.Context(), words); err != nil {
		b.t.Fatalf("%s: %v", words, err)
	}
}

// stand tells where a subject is: "standing at ready".
func (b *bench) stand(workflow, id string) string { return standing(b.Engine, workflow, id) }

func standing(e *engine.Engine, workflow, id string) string {
	v, ok := e.Get(workflow, id)
	if !ok {
		return "gone"
	}
	return fmt.Sprintf("%s at %q", v.Phase, v.Station)
}

func equal(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s\n got: %s\nwant: %s", what, got, want)
	}
}

func isError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error %v is not %v", err, want)
	}
}
