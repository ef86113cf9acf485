// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

func TestPoints(t *testing.T) {
	if pod := (whose{id: "c1", name: "p1_c_0"}).podID(); pod != "p1" {
		t.Errorf("the pod of a container is %q", pod)
	}
	if pod := (whose{id: "p1", name: "default_name_uid_0"}).podID(); pod != "p1" {
		t.Errorf("the pod of a sandbox is %q", pod)
	}
	for want, s := range map[string]engine.Span{
		"init:network":               {Flow: "init", Action: "network"},
		"sweep:network":              {Flow: "sweep", Action: "network"},
		"flow:sandbox.create":        {Workflow: "sandbox", Flow: "create"},
		"flow:sandbox.destroy":       {Workflow: "sandbox", Flow: "destroy", Down: true},
		"rollback:sandbox.create":    {Workflow: "sandbox", Flow: "create", Down: true, Rollback: true},
		"sandbox.create/do:files":    {Workflow: "sandbox", Flow: "create", Action: "files"},
		"container.remove/undo:spec": {Workflow: "container", Flow: "remove", Action: "spec", Down: true},
	} {
		if got := pointsOf(s); got[0] != want {
			t.Errorf("%+v: %v, want %s", s, got, want)
		}
	}
	for want, data := range map[string]string{
		"journal:sandbox.climbing.2":     `{"phase":"climbing","rungs":[{},{}]}`,
		"journal:sandbox.standing.ready": `{"phase":"standing","station":"ready"}`,
		"journal:sandbox.stuck.0":        `{"phase":"stuck"}`,
		"journal:sandbox.unreadable":     `{`,
		"journal:sandbox.gone":           "",
	} {
		c := engine.Change{Key: "sandbox/x"}
		if data != "" {
			c.Data = []byte(data)
		}
		if got := recordPoint(c); got != want {
			t.Errorf("%s: %s, want %s", data, got, want)
		}
	}
}

type memory struct{ engine.Journal }

func (memory) Write([]engine.Change) error { return nil }

func TestFaultKinds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults")
	f := newFaults(path)
	set := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	around := func(ctx context.Context) error {
		s := engine.Span{Workflow: "sandbox", Flow: "create", Action: "x"}
		return f.Around(ctx, s, func(context.Context) error { ran++; return nil })
	}
	ok := func(what string, err error, runs int) {
		t.Helper()
		if err != nil || ran != runs {
			t.Errorf("%s: %v, ran %d times", what, err, ran)
		}
		ran = 0
	}
	ok("no file", around(t.Context()), 1)
	set("do:y=fail undo:x=fail")
	ok("another's", around(t.Context()), 1)
	set("do:x@life-7=fail undo:x=fail")
	ok("another subject's", around(t.Context()), 1)
	named := engine.Span{Workflow: "sandbox", Flow: "create", Action: "x", Name: "default_life-7_uid_0", ID: "id"}
	err := f.Around(t.Context(), named, func(context.Context) error { ran++; return nil })
	if !errors.Is(err, errInjected) || ran != 0 {
		t.Errorf("its subject: %v, ran %d times", err, ran)
	}
	set("sandbox.create/do:x=fail*2")
	for i := range 2 {
		if i == 1 { // it has been used once, whatever else is asked for meanwhile
			set("sandbox.create/do:x=fail*2 do:y=fail")
		}
		if err := around(t.Context()); !errors.Is(err, errInjected) || ran != 0 {
			t.Errorf("fail: %v, ran %d times", err, ran)
		}
	}
	ok("used up", around(t.Context()), 1)
	set("do:x=late")
	if err := around(t.Context()); !errors.Is(err, errInjected) || ran != 1 {
		t.Errorf("late: %v, ran %d times", err, ran)
	}
	ran = 0
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	set("do:x=hang")
	if err := around(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hang: %v", err)
	}
	set("do:x=stall")
	go func() {
		time.Sleep(50 * time.Millisecond)
		_ = os.WriteFile(path, nil, 0o600)
	}()
	ok("stall", around(soon), 1)
	set("do:x=nonsense")
	if err := around(t.Context()); err == nil {
		t.Error("an unknown fault is taken")
	}
	set("journal:sandbox.gone=fail")
	j := failingJournal{memory{}, f}
	if err := j.Write([]engine.Change{{Key: "sandbox/a"}}); !errors.Is(err, errInjected) {
		t.Errorf("journal: %v", err)
	}
	if err := j.Write([]engine.Change{{Key: "container/a"}}); err != nil {
		t.Errorf("journal: %v", err)
	}
	set("journal:sandbox.standing.ready@life-7=fail")
	for name, want := range map[string]error{"life-6": nil, "life-7": errInjected} {
		record := fmt.Appendf(nil, `{"phase":"standing","station":"ready","name":%q}`, name)
		if err := j.Write([]engine.Change{{Key: "sandbox/a", Data: record}}); !errors.Is(err, want) {
			t.Errorf("journal of %s: %v", name, err)
		}
	}
	log, err := os.ReadFile(path + ".log")
	if err != nil || !strings.Contains(string(log), "do:x=late\n") || !strings.Contains(string(log), "journal:sandbox.gone=fail\n") {
		t.Errorf("log: %s %v", log, err)
	}
	set("")
	if err := os.WriteFile(path+".trace", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ok("traced", around(t.Context()), 1)
	if trace, err := os.ReadFile(path + ".trace"); err != nil || string(trace) != "sandbox.create/do:x\n" {
		t.Errorf("trace: %q %v", trace, err)
	}
}
