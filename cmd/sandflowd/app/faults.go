// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sandflow-cri/sandflow/engine"
)

// faultFile names the environment variable with the path of a file of faults. It is read
// anew at each point, so a test can change it while the daemon runs. It holds faults,
// separated by commas or white space, each a point and what happens there:
//
//	do:network=fail          the action's do fails before it does anything
//	do:network=late          … after it has done everything
//	undo:shim=fail*2         its undo fails, twice, then not any more
//	undo:shim=skip           its undo does nothing, and says that it has
//	do:task=hang             it waits until its context ends, or the fault is taken back
//	do:task=stall            it waits until the fault is taken back, whatever its context does
//	do:network=sleep500ms    it waits that long, within its context, then goes on
//	do:network=panic         it panics
//	do:network=kill          the daemon is killed (SIGKILL) before it
//	do:network=killafter     … after it
//	do:task=killshim         all shims of this daemon are killed before it
//	do:task=killshimafter    … after it
//
// A point may be meant for some subjects only: do:network@life-7=fail is for those that have
// "life-7" in their name or ID, and killshim kills the shim of that subject's pod alone.
//
// The points are
//
//	do:ACTION undo:ACTION              around each action, both with the flow before it if one
//	sandbox.create/undo:ACTION         flow is meant: in a create this is the rollback
//	init:ACTION sweep:ACTION           at the start, and when sweeping
//	flow:sandbox.create                around a flow going up, or down on its own
//	rollback:sandbox.create            around the rollback of one
//	journal:sandbox.climbing.2         around the write of such a record: with that many steps
//	                                   entered and not undone …
//	journal:sandbox.standing.ready     … or at that station …
//	journal:sandbox.gone               … or of its removal
//
// Each fault that is used is noted, as "do:network=fail" on a line, in the file of the same
// name with ".log" behind, before it has its effect. If there is a file with ".trace" behind,
// every point that is passed is noted there.
const faultFile = "SANDFLOW_FAULTS"

var errInjected = errors.New("injected fault")

// faultObservers returns the observer that injects faults; it must be the innermost.
func faultObservers() []engine.Observer {
	if path := os.Getenv(faultFile); path != "" {
		return []engine.Observer{newFaults(path)}
	}
	return nil
}

// faultJournal puts the points of the journal around a journal.
func faultJournal(j engine.Journal) engine.Journal {
	if path := os.Getenv(faultFile); path != "" {
		return failingJournal{j, newFaults(path)}
	}
	return j
}

func newFaults(path string) *faults { return &faults{path: path, used: map[string]int{}} }

type faults struct {
	path string

	mu   sync.Mutex
	used map[string]int // how often each fault of the file was injected
}

// Around injects the fault that is asked for, if there is one, around an action or a flow.
func (f *faults) Around(ctx context.Context, s engine.Span, next func(context.Context) error) error {
	if s.Skipped {
		return next(ctx)
	}
	return f.inject(ctx, whose{id: s.ID, name: s.Name}, pointsOf(s), next)
}

// whose is whom a point is passed for.
type whose struct{ id, name string }

// podID is that of a sandbox, or of the sandbox that a container is in: its name begins with it.
func (s whose) podID() string {
	if pod, _, ok := strings.Cut(s.name, "_"); ok && len(pod) == len(s.id) {
		return pod
	}
	return s.id
}

// pointsOf gives the names of one point, the full one first.
func pointsOf(s engine.Span) []string {
	flow := s.Workflow + "." + s.Flow
	switch {
	case s.Workflow == "": // init, sweep
		return []string{s.Flow + ":" + s.Action}
	case s.Action == "" && s.Rollback:
		return []string{"rollback:" + flow}
	case s.Action == "":
		return []string{"flow:" + flow}
	}
	where := "do:" + s.Action
	if s.Down {
		where = "undo:" + s.Action
	}
	return []string{flow + "/" + where, where}
}

// inject does what is asked for at a point around body.
func (f *faults) inject(ctx context.Context, who whose, points []string, body func(context.Context) error) error {
	if err := f.trace(points[0]); err != nil {
		return err
	}
	for _, where := range points {
		one, err := f.take(where, who)
		if err != nil {
			return err
		}
		if one.kind != "" {
			return f.effect(ctx, one, body)
		}
	}
	return body(ctx)
}

// fault is one that is being injected: where, as the file has it, of what kind, and the pod whose
// shim it may kill; empty: all shims.
type fault struct{ at, kind, pod string }

// take finds the fault for a point and uses it up once.
func (f *faults) take(where string, who whose) (fault, error) {
	faults, err := f.read()
	if err != nil {
		return fault{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, text := range faults {
		at, kind, _ := strings.Cut(text, "=")
		point, part, some := strings.Cut(at, "@")
		if point != where || !strings.Contains(who.name+" "+who.id, part) {
			continue
		}
		kind, times, limited := strings.Cut(kind, "*")
		n, err := strconv.Atoi(times)
		if limited && err != nil {
			return fault{}, fmt.Errorf("unknown fault %q: %w", text, err)
		}
		if limited && f.used[text] >= n {
			continue
		}
		f.used[text]++
		one := fault{at: at, kind: kind}
		if some {
			one.pod = who.podID()
		}
		return one, note(f.path+".log", os.O_CREATE, at+"="+kind)
	}
	return fault{}, nil
}

// read gives the faults as they are in the file now.
func (f *faults) read() ([]string, error) {
	raw, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read faults: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	split := func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }
	all := strings.FieldsFunc(string(raw), split)
	// One that was taken out and comes again is a new one.
	maps.DeleteFunc(f.used, func(one string, _ int) bool { return !slices.Contains(all, one) })
	return all, nil
}

// trace notes a point if a test asks for it.
func (f *faults) trace(point string) error {
	err := note(f.path+".trace", 0, point)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func note(path string, flags int, what string) error {
	file, err := os.OpenFile(path, flags|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("note fault: %w", err)
	}
	_, err = fmt.Fprintln(file, what)
	return errors.Join(err, file.Close())
}

// failingJournal is a journal with a point around each record that is written.
type failingJournal struct {
	engine.Journal

	faults *faults
}

// Write implements engine.Journal. The points of a write with several records are nested.
func (j failingJournal) Write(changes []engine.Change) error {
	write := func(context.Context) error { return j.Journal.Write(changes) }
	for _, c := range changes {
		point, who, inner := recordPoint(c), recordSubject(c), write
		write = func(ctx context.Context) error { return j.faults.inject(ctx, who, []string{point}, inner) }
	}
	return write(context.Background())
}

// recordSubject is whose record it is; that of a record that is removed has no name.
func recordSubject(c engine.Change) whose {
	_, id, _ := strings.Cut(c.Key, "/")
	var r struct{ Name string }
	_ = json.Unmarshal(c.Data, &r) // see recordPoint
	return whose{id: id, name: r.Name}
}

// recordPoint names the write of a record by what it says of its subject.
func recordPoint(c engine.Change) string {
	workflow, _, _ := strings.Cut(c.Key, "/")
	var r struct {
		Phase, Station string
		Rungs          []json.RawMessage
	}
	switch err := json.Unmarshal(c.Data, &r); {
	case c.Data == nil:
		return "journal:" + workflow + ".gone"
	case err != nil:
		return "journal:" + workflow + ".unreadable"
	case r.Phase == string(engine.Standing):
		return "journal:" + workflow + ".standing." + r.Station
	default:
		return fmt.Sprintf("journal:%s.%s.%d", workflow, r.Phase, len(r.Rungs))
	}
}
