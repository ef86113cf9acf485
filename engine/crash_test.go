// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/engine"
)

var errDead = errors.New("dead")

// whole is what stands of a pod and a container at each station.
var whole = map[string]string{
	`pod standing at "ready"`:    "files 1,net 1,ns 1,shim 1",
	`pod standing at "reserved"`: "",
	`pod gone`:                   "",
	`ctr standing at "created"`:  "rootfs 1,spec 1",
	`ctr standing at "running"`:  "rootfs 1,spec 1,task 1",
	`ctr gone`:                   "",
}

// lives are what a daemon does before it is killed. A leading "!" makes the event fail.
var lives = []string{
	"pod create 1, pod destroy 1, pod cleanup 1",
	"pod create 1, pod cleanup 1",
	"!do-shim, pod create 1",
	"!do-net, !undo-ns, pod create 1, pod destroy 1",
	"pod create 1, !undo-net, pod destroy 1, heal, pod destroy 1",
	"ctr create 1, ctr start 1, ctr stop 1, ctr remove 1",
	"ctr create 1, ctr start 1, ctr remove 1",
	"ctr create 1, !do-task, ctr start 1, heal, ctr start 1",
}

// live leads a life until the daemon dies, and says whether it did.
func live(t *testing.T, e *engine.Engine, w *world, life string) bool {
	t.Helper()
	b := &bench{Engine: e, t: t, w: w}
	for _, move := range strings.Split(life, ", ") {
		switch event, fails := strings.CutPrefix(move, "!"); {
		case fails:
			w.set(event, errBoom)
		case move == "heal":
			w.mu.Lock()
			clear(w.fail)
			w.mu.Unlock()
		default:
			_ = b.do(t.Context(), move)
		}
		if w.isDead() {
			return true
		}
	}
	return false
}

// boot starts a daemon on what the one before has left behind.
func boot(t *testing.T, w *world, j engine.Journal) *engine.Engine {
	t.Helper()
	e, err := engine.New(options(w, j), []engine.Definition{podDef, ctrDef, imageDef}, defaults())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Boot(t.Context()); err != nil && !w.isDead() {
		t.Fatal(err)
	}
	return e
}

func closeEngine(t *testing.T, e *engine.Engine) {
	t.Helper()
	if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}

// settled checks that what Boot left is whole or gone, and can go.
func settled(t *testing.T, e *engine.Engine, w *world, life string) {
	t.Helper()
	workflow := "pod"
	if strings.Contains(life, "ctr ") {
		workflow = "ctr"
	}
	b := &bench{Engine: e, t: t, w: w}
	if strings.HasPrefix(b.stand(workflow, "1"), "stuck") {
		// Stuck before the crash: any descent goes on with it.
		b.must(map[string]string{"pod": "pod destroy 1", "ctr": "ctr stop 1"}[workflow])
	}
	stand := workflow + " " + b.stand(workflow, "1")
	want, ok := whole[stand]
	if got := strings.Join(w.left(), ","); !ok || got != want {
		t.Fatalf("%s: left %q, want %q", stand, got, want)
	}
	b.must(map[string]string{"pod": "pod cleanup 1", "ctr": "ctr remove 1"}[workflow])
	if left := w.left(); len(left) > 0 {
		t.Fatalf("left at the end: %v", left)
	}
	b.must(workflow + " create 1")
	b.must(map[string]string{"pod": "pod cleanup 1", "ctr": "ctr remove 1"}[workflow])
}

// revive ends the death, and whatever made events fail.
func (w *world) revive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead, w.killAt, w.effects = false, 0, 0
	clear(w.fail)
}

func (w *world) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

// killAtWrite is a journal's death at its nth write, which may have reached the disk or not.
func killAtWrite(w *world, n int, applied bool) func(int) (bool, error) {
	return func(i int) (bool, error) {
		switch {
		case i < n:
			return true, nil
		case i == n:
			w.kill()
			return applied, errDead
		}
		return false, errDead
	}
}

func TestCrashAtEveryWrite(t *testing.T) {
	for _, life := range lives {
		for _, applied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, applied %v", life, applied), func(t *testing.T) {
				n, crashed := 0, true
				for crashed {
					n++
					w, j := newWorld(), newMemory()
					j.at = killAtWrite(w, n, applied)
					e := boot(t, w, j)
					crashed = live(t, e, w, life)
					closeEngine(t, e)
					w.revive()
					j.at = nil
					e = boot(t, w, j)
					settled(t, e, w, life)
					closeEngine(t, e)
					if len(j.data) > 0 {
						t.Fatalf("write %d: records are left: %s", n, j.data)
					}
				}
				if n < 4 { // a create and its end
					t.Errorf("only %d writes", n)
				}
			})
		}
	}
}

// The recovery is killed too, at each of its writes.
func TestCrashInRecovery(t *testing.T) {
	for _, life := range lives {
		t.Run(life, func(t *testing.T) {
			for n, crashed := 1, true; crashed; n++ {
				for m, again := 1, true; again; m++ {
					w, j := newWorld(), newMemory()
					j.at = killAtWrite(w, n, true)
					e := boot(t, w, j)
					crashed = live(t, e, w, life)
					closeEngine(t, e)
					w.revive()
					j.writes, j.at = 0, killAtWrite(w, m, m%2 == 0)
					closeEngine(t, boot(t, w, j))
					again = w.isDead()
					w.revive()
					j.at = nil
					e = boot(t, w, j)
					settled(t, e, w, life)
					closeEngine(t, e)
				}
			}
		})
	}
}

// Killed inside an action, after it has done its work and before it could say so.
func TestCrashInsideEveryAction(t *testing.T) {
	for _, life := range lives {
		t.Run(life, func(t *testing.T) {
			for n, crashed := 1, true; crashed; n++ {
				w, j := newWorld(), newMemory()
				w.killAt = n
				j.at = func(int) (bool, error) {
					if w.isDead() {
						return false, errDead
					}
					return true, nil
				}
				e := boot(t, w, j)
				crashed = live(t, e, w, life)
				closeEngine(t, e)
				w.revive()
				e = boot(t, w, j)
				settled(t, e, w, life)
				closeEngine(t, e)
			}
		})
	}
}

// dying is a real journal with a death.
type dying struct {
	engine.Journal
	writes int
	at     func(int) (bool, error)
}

func (d *dying) Write(changes []engine.Change) error {
	d.writes++
	applied, err := d.at(d.writes)
	if applied {
		err = errors.Join(err, d.Journal.Write(changes))
	}
	return err
}

func TestCrashAtEveryWriteOfBolt(t *testing.T) {
	open := func(path string) engine.Journal {
		j, err := engine.OpenBolt(path)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	dir := t.TempDir()
	for i, life := range lives[:3] {
		for n, crashed := 1, true; crashed; n++ {
			w, path := newWorld(), filepath.Join(dir, fmt.Sprintf("%d-%d.db", i, n))
			e := boot(t, w, &dying{Journal: open(path), at: killAtWrite(w, n, n%2 == 0)})
			crashed = live(t, e, w, life)
			closeEngine(t, e)
			w.revive()
			e = boot(t, w, open(path))
			settled(t, e, w, life)
			closeEngine(t, e)
		}
	}
}

func TestRecoveryKeepsValuesAndOrder(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	b := &bench{Engine: e, t: t, w: w}
	var ids []string
	for i := range 20 {
		id := fmt.Sprint("p", (i*7)%20)
		ids = append(ids, id)
		b.must("pod create " + id)
	}
	if err := e.Amend(t.Context(), "pod", "p3", exit.With(42)); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, e)
	e = boot(t, w, j)
	defer closeEngine(t, e)
	var got []string
	for _, v := range e.List("pod") {
		got = append(got, v.ID)
	}
	if !slices.Equal(got, ids) {
		t.Errorf("order %v, want %v", got, ids)
	}
	v, _ := e.ByName("pod", "name-p3")
	code, ok, err := exit.Get(v)
	addr, err2 := address.Need(v)
	if code != 42 || !ok || addr != "10.0.0.1" || err != nil || err2 != nil {
		t.Errorf("exit %d %v %v, address %q %v", code, ok, err, addr, err2)
	}
}

// A record tells which actions were entered: another configuration undoes them all the same.
func TestRecoveryWithAnotherConfiguration(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	(&bench{Engine: e, t: t, w: w}).must("pod create 1")
	closeEngine(t, e)
	cfg := defaults()
	cfg["pod"]["create"] = engine.FlowConfig{Steps: [][]string{{"spec"}, {"files"}}}
	cfg["ctr"]["create"] = engine.FlowConfig{Steps: [][]string{{"rootfs"}}}
	e = start(t, options(w, j), cfg)
	w.reset()
	(&bench{Engine: e, t: t, w: w}).must("pod cleanup 1")
	equal(t, "story", w.story(), "undo-shim undo-net undo-files undo-ns")
}
