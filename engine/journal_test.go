// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/sandflow-cri/sandflow/engine"
)

func TestDamagedRecords(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	b := &bench{Engine: e, t: t, w: w}
	for _, id := range []string{"torn", "tail", "newer", "stranger", "phase", "whole"} {
		b.must("pod create " + id)
	}
	closeEngine(t, e)
	edit := func(id, from, to string) {
		before := j.data["pod/"+id]
		j.data["pod/"+id] = bytes.Replace(before, []byte(from), []byte(to), 1)
		if bytes.Equal(before, j.data["pod/"+id]) {
			t.Fatalf("%s is not in %s", from, before)
		}
	}
	j.data["pod/torn"] = j.data["pod/torn"][:20]
	tail := bytes.Index(j.data["pod/tail"], []byte(`"rungs"`))
	j.data["pod/tail"] = append(j.data["pod/tail"][:tail], make([]byte, 9)...)
	edit("newer", `"v":1`, `"v":2`)
	edit("newer", `"rungs":[`, `"rungs":[7,`)
	edit("stranger", `"id":"stranger"`, `"id":"other"`)
	edit("phase", `"standing"`, `"flying"`)
	j.data["moon/1"] = []byte(`{"v":1,"workflow":"moon","id":"1","phase":"climbing","station":"","goal":"","created":"2026-01-02T03:04:05Z","changed":"2026-01-02T03:04:05Z"}`)

	w.reset()
	e = start(t, options(w, j), defaults())
	b = &bench{Engine: e, t: t, w: w, j: j}
	equal(t, "nothing was touched", w.story(), "")
	for id, why := range map[string]string{
		"torn": "unexpected end of JSON", "tail": "invalid character", "newer": "record version 2, known is 1: written by a newer sandflow",
		"stranger": `the record is of "pod" "other"`, "phase": `unknown phase "flying"`,
	} {
		v, ok := b.Get("pod", id)
		if !ok || !v.Damaged || !strings.Contains(v.Error, why) {
			t.Errorf("%s: %+v", id, v)
		}
		if err := b.Amend(t.Context(), "pod", id, exit.With(1)); err == nil {
			t.Errorf("%s was amended", id)
		}
		isError(t, b.do(t.Context(), "pod create "+id), engine.ErrExists)
		if name := "name-" + id; id != "torn" && v.Name != name {
			t.Errorf("%s has the name %q", id, v.Name)
		} else if err := b.Climb(t.Context(), "pod", "create", "new-"+id, given(name)); err != nil {
			t.Errorf("the name of one that cannot be read is kept from others: %v", err)
		}
		b.must("pod destroy " + id)
		b.must("pod cleanup " + id)
	}
	for _, id := range []string{"new-torn", "new-tail", "new-newer", "new-stranger", "new-phase"} {
		b.must("pod destroy " + id)
	}
	equal(t, "what is left", strings.Join(w.left(), " "), "files whole net whole ns whole shim whole")
	if v, ok := b.Get("moon", "1"); !ok || v.Phase != engine.Climbing || j.data["moon/1"] == nil {
		t.Errorf("the record of an unknown workflow: %+v", v)
	}
	if v, _ := b.Get("pod", "whole"); v.Damaged {
		t.Error("one that is whole is damaged")
	}
}

func TestSlotThatDoesNotDecode(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	(&bench{Engine: e, t: t, w: w}).must("pod create 1")
	closeEngine(t, e)
	j.data["pod/1"] = bytes.Replace(j.data["pod/1"], []byte(`"please"`), []byte(`{"p":1}`), 1)
	e = start(t, options(w, j), defaults())
	v, _ := e.Get("pod", "1")
	if _, _, err := request.Get(v); err == nil || !strings.Contains(err.Error(), "test.request of pod 1") {
		t.Errorf("error: %v", err)
	}
	if addr, err := address.Need(v); addr != "10.0.0.1" || err != nil {
		t.Errorf("the other slot: %q %v", addr, err)
	}
	_, err := exit.Need(v)
	isError(t, err, engine.ErrUnset)
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"v":1,"workflow":"pod","id":"1","phase":"climbing","station":"","goal":"","rungs":[{"base":"","actions":["ns","x"]}]}`))
	f.Add([]byte(`{"v":1,"workflow":"pod","id":"1","phase":"stuck","station":"ready","goal":"reserved","slots":{"test.request":null,"a":[1]}}`))
	f.Add([]byte(`{"v":9}`))
	f.Add([]byte(`{"v":1,"workflow":"pod","id":"1","phase":"standing","station":"moon","goal":"moon"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, j := newWorld(), newMemory()
		j.data["pod/1"] = data
		e := boot(t, w, j)
		defer closeEngine(t, e)
		b := &bench{Engine: e, t: t, w: w}
		if v, ok := e.Get("pod", "1"); ok {
			_, _, _ = request.Get(v)
			_ = b.do(t.Context(), "pod destroy 1")
			if err := b.do(t.Context(), "pod cleanup 1"); err != nil && !strings.Contains(err.Error(), "no action of that name") {
				t.Errorf("it cannot be removed: %v", err)
			}
		}
	})
}

func TestBoltFormats(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "journal.db")
	j, err := engine.OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Write([]engine.Change{{Key: "pod/1", Data: []byte("one")}, {Key: "pod/2", Data: []byte("two")}}); err != nil {
		t.Fatal(err)
	}
	if err := j.Write([]engine.Change{{Key: "pod/1"}, {Key: "pod/3", Data: []byte("three")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.OpenBolt(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("opened twice: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if j, err = engine.OpenBolt(path); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = j.Load(func(key string, data []byte) error {
		got = append(got, key+"="+string(data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "records", strings.Join(got, " "), "pod/2=two pod/3=three")
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}

	setFormat(t, path, "x")
	if _, err := engine.OpenBolt(path); err == nil {
		t.Error("a database without a format we can read")
	}
	junk := filepath.Join(dir, "junk.db")
	if err := os.WriteFile(junk, bytes.Repeat([]byte("junk"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.OpenBolt(junk); err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("junk: %v", err)
	}
	if _, err := engine.OpenBolt(filepath.Join(dir, "no", "where.db")); err == nil {
		t.Error("no directory")
	}
}

// TestJournalOfAnother opens journals of newer and of impossible formats: they are
// refused with both numbers, and no byte of them changes.
func TestJournalOfAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	j, err := engine.OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for format, says := range map[string]string{
		"2": "it has format 2, this sandflow knows 1 to 1: written by a newer sandflow",
		"0": "it has format 0, this sandflow knows 1 to 1: it is too old",
	} {
		setFormat(t, path, format)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := engine.OpenBolt(path); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("format %s: %v", format, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("format %s: the journal was changed (%v)", format, err)
		}
	}
}

// TestAdmit has one record refused: nothing is done to any.
func TestAdmit(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	b := &bench{Engine: e, t: t, w: w}
	b.must("pod create 1")
	b.must("pod create 2")
	closeEngine(t, e)
	j.data["pod/1"] = bytes.Replace(j.data["pod/1"], []byte(`"standing"`), []byte(`"climbing"`), 1)
	w.reset()
	o := options(w, j)
	o.Admit = func(v *engine.View) error {
		if v.ID == "2" {
			return errors.New("it is of tomorrow")
		}
		return nil
	}
	e, err := engine.New(o, []engine.Definition{podDef, ctrDef, imageDef}, defaults())
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine(t, e)
	if err := e.Boot(t.Context()); err == nil || !strings.Contains(err.Error(), "pod 2: it is of tomorrow") {
		t.Errorf("boot: %v", err)
	}
	equal(t, "nothing was touched", w.story(), "")
	isError(t, b.Descend(t.Context(), "pod", "destroy", "2", engine.DescendOptions{}), engine.ErrClosed)
}

func setFormat(t *testing.T, path, format string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte(format)) })
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// counting counts transactions and what is in them.
type counting struct {
	engine.Journal
	mu           sync.Mutex
	writes, most int
	hold         chan struct{}
}

func (c *counting) Write(changes []engine.Change) error {
	<-c.hold
	c.mu.Lock()
	c.writes++
	c.most = max(c.most, len(changes))
	c.mu.Unlock()
	return c.Journal.Write(changes)
}

func TestManySubjectsShareATransaction(t *testing.T) {
	j, err := engine.OpenBolt(filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{Journal: j, hold: make(chan struct{})}
	w := newWorld()
	b := &bench{Engine: start(t, options(w, c), defaults()), t: t, w: w}
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() { b.must(fmt.Sprintf("pod create %d", i)) })
	}
	for len(b.List("pod")) < 30 { // all have queued their first write
		select {
		case c.hold <- struct{}{}: // the first may go alone
		default:
		}
	}
	close(c.hold)
	wg.Wait()
	if c.most < 10 || c.writes > 90 {
		t.Errorf("120 changes took %d transactions, the largest had %d", c.writes, c.most)
	}
}

// A flow costs two writes, whatever the number of its steps.
func TestTwoWritesForEachFlow(t *testing.T) {
	b := newBench(t)
	for _, move := range []string{"pod create 1", "pod destroy 1", "pod create 2", "pod cleanup 2", "ctr create 1", "ctr start 1"} {
		before := b.j.writes
		b.must(move)
		if n := b.j.writes - before; n != 2 {
			t.Errorf("%s: %d writes", move, n)
		}
	}
}
