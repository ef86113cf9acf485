// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"os"
	"path/filepath"
	"strings"
)

// interrupted is what a start finds: a call that was cut off, or a node whose journal is lost.
type interrupted struct {
	name  string
	stage int
	fault string // empty: the journal is lost
}

var interruptions = []interrupted{
	{"RunPodSandbox, all but done", 0, "sandbox.create/do:shim=killafter"},
	{"StartContainer, all but done", 2, "container.start/do:task=killafter"},
	{"StopPodSandbox, half done", 5, "sandbox.destroy/undo:network=killafter"},
	{"nothing, but the journal is lost", 3, ""},
}

// recoveries kills the daemon while it recovers, at each place.
func (n *node) recoveries() {
	for i, in := range interruptions {
		if !full() && i%3 != 0 {
			continue
		}
		n.interrupt(in)
		places := n.traced(func() { must(n.t, n.daemon.Start(n.t.Context())) })
		n.reset()
		for _, place := range places {
			row := []string{"", ""}
			for k, how := range []string{"kill", "killafter"} {
				if !full() && (how == "kill" || !strings.Contains(place, "undo:") && place != "sweep:task" && place != "sweep:network") {
					continue
				}
				n.try(in.name+" "+place+" "+how, func() { row[k] = n.recover(in, place+"="+how) })
			}
			if strings.Join(row, "") != "" {
				report("recovery", in.name, place, row)
			}
		}
	}
}

// interrupt leaves a dead daemon and what it was busy with.
func (n *node) interrupt(in interrupted) *life {
	n.t.Helper()
	l := n.life("")
	must(n.t, l.span(0, in.stage))
	if in.fault == "" {
		must(n.t, n.daemon.Kill())
		must(n.t, os.Remove(filepath.Join(n.daemon.Root, "journal.db")))
		return l
	}
	n.fault(in.fault)
	if !n.dies(func() { _ = l.do(stages[in.stage]) }) {
		n.t.Fatalf("%s is not reached", in.fault)
	}
	must(n.t, n.daemon.Kill())
	n.fault()
	return l
}

// recover kills the daemon in its next start, and lets it recover in the one after that.
func (n *node) recover(in interrupted, fault string) string {
	n.t.Helper()
	l := n.interrupt(in)
	n.fault(fault)
	if err := n.daemon.Start(n.t.Context()); err == nil && !n.dies(func() {}) {
		n.t.Errorf("%s is not reached", fault)
	}
	must(n.t, n.daemon.Kill())
	n.fault()
	must(n.t, n.daemon.Start(n.t.Context()))
	found := l.state()
	n.healthy()
	if in.fault == "" {
		if found != "gone" {
			n.t.Errorf("without a journal the pod is %s", found)
		}
		n.same()
		return found
	}
	if err := l.repeat(stages[in.stage]); err != nil {
		n.t.Fatal(err)
	}
	if err := l.from(in.stage + 1); err != nil {
		n.t.Error(err)
	}
	n.same()
	return found
}
