// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandflow-cri/sandflow/hack/world"
)

// moment is how long what ends by itself may take, where something is expected to stay.
const moment = time.Second

// equivalent are actions whose undo may as well do nothing, and why.
var equivalent = map[string]string{
	"nri-start": "plugins that were not told by it are told at the end of the flow, which nobody can tell apart",
}

// mutants lets the undo of each action do nothing. The matrices are worth something only if
// they find that.
func (n *node) mutants() {
	n.try("none", func() { // the same without a fault
		for _, up := range []int{0, 1, 2} {
			if m := n.mutate(action{name: "none", up: up, down: 5 - up}); m.found+m.end+m.told != "" {
				n.t.Errorf("%s and %s: found without a fault: %+v", stages[up].name, stages[5-up].name, m)
			}
		}
	})
	for _, a := range n.actions() {
		if !a.passed {
			report("mutations", a.name, "not passed", "", "", "")
			continue
		}
		n.try(a.name, func() {
			m := n.mutate(a)
			switch why := equivalent[a.name]; {
			case m.found+m.end+m.told != "":
			case why != "":
				m.found = "no: " + why
			default:
				n.t.Errorf("an undo of %s that does nothing is not found", a.name)
			}
			if m.told != "" {
				m.found += " an NRI plugin is " + m.told
			}
			must(n.t, n.daemon.Stop())
			must(n.t, n.daemon.Start(n.t.Context()))
			n.collect()
			after := n.left(5 * moment)
			report("mutations", a.name, m.found, orNothing(m.end), m.doctor, orNothing(kindsOf(after)))
			if after != "" {
				n.reset()
			}
		})
	}
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// mutant is what an undo that does nothing has left: when the subject is down where it was
// before, and when the pod's life is over; and who says so.
type mutant struct{ found, end, doctor, told string }

// mutate lives a life with an undo that does nothing.
func (n *node) mutate(a action) (m mutant) {
	n.t.Helper()
	watcher, stop := n.watch()
	defer func() { m.told = watcher.findings() }()
	defer stop()
	l := n.life(a.handler)
	must(n.t, l.span(0, a.up))
	if a.up > 0 { // the first container of a pod makes what stays as long as the pod
		first := n.life(a.handler)
		first.config, first.pod = l.config, l.pod
		first.ctr.Metadata.Name = "first"
		must(n.t, first.span(1, 5))
		n.quiet()
	}
	before := n.count()
	must(n.t, l.span(a.up, a.down))
	n.quiet()
	fault := "undo:" + a.name + "=skip"
	n.fault(fault)
	err := l.do(stages[a.down])
	n.quiet()
	if a.name != "none" && !n.used(fault) {
		n.t.Fatal("the undo was not called")
	}
	n.collect()
	diff, derr := world.Settle(n.t.Context(), n.where(), before, moment)
	must(n.t, derr)
	m.found = kindsOf(diff)
	if err = errors.Join(err, l.from(a.down+1)); err != nil {
		m.found += ", and a call fails: " + code(err)
	}
	n.quiet()
	n.collect()
	m.end = kindsOf(n.left(moment))
	if m.doctor = "nothing"; m.end != "" {
		if status, _ := n.sandflow("doctor"); status == 4 {
			m.doctor = "finds it"
		} else {
			n.t.Errorf("the doctor does not find %s", m.end)
		}
	}
	n.fault()
	return m
}

// kindsOf sums a difference up.
func kindsOf(diff string) string {
	counts, order := map[string]int{}, []string(nil)
	for line := range strings.Lines(diff) {
		kind, _, _ := strings.Cut(strings.TrimLeft(line, "+- "), ":")
		if counts[kind] == 0 {
			order = append(order, kind)
		}
		counts[kind]++
	}
	for i, kind := range order {
		order[i] = fmt.Sprintf("%d %s", counts[kind], kind)
	}
	return strings.Join(order, ", ")
}
