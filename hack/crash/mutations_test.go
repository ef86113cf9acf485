// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"strings"
	"testing"
)

// equivalent are actions whose undo may as well do nothing, and why.
var equivalent = map[string]string{
	"nri-start": "plugins that were not told by it are told at the end of the flow, which nobody can tell apart",
}

// TestMutations lets the undo of each action do nothing. The matrices are worth something only
// if they find that.
func TestMutations(t *testing.T) {
	n := newNode(t, "")
	for _, a := range n.actions() {
		if !a.passed {
			report("mutations", a.name, "not passed", "", "")
			continue
		}
		n.try(a.name, func() {
			world, doctor, after := n.mutant(a)
			report("mutations", a.name, world, doctor, after)
		})
		n.reset()
	}
}

// mutant lives a life with an undo that does nothing, and tells what finds it.
func (n *node) mutant(a action) (world, doctor, after string) {
	n.t.Helper()
	watcher, stop := n.watch()
	l := n.life(a.handler)
	must(n.t, l.span(0, a.down))
	n.quiet()
	n.fault("undo:" + a.name + "=skip")
	err := l.from(a.down)
	n.quiet()
	if !n.used("undo:" + a.name + "=skip") {
		n.t.Fatal("the undo was not called")
	}
	told := watcher.findings()
	stop()
	diff := n.left()
	status, out := n.sandflow("doctor")
	n.fault()
	world, doctor = "no", "no"
	if diff != "" {
		world = fmt.Sprintf("yes: %s", kindsOf(diff))
	}
	if err != nil {
		world += fmt.Sprintf(", and a call fails: %s", code(err))
		n.t.Log(err)
	}
	if status == 4 {
		doctor = "yes"
	}
	if told != "" {
		world += ", but by an NRI plugin: " + told
	}
	switch why := equivalent[a.name]; {
	case diff != "" || err != nil || told != "":
	case why != "":
		world += ": " + why
	default:
		n.t.Errorf("an undo of %s that does nothing is not found", a.name)
	}
	if doctor == "no" && diff != "" {
		n.t.Logf("the doctor does not find that the undo of %s does nothing:\n%s\nwhile there is\n%s", a.name, out, diff)
	}
	must(n.t, n.daemon.Stop())
	must(n.t, n.daemon.Start(n.t.Context()))
	after = "nothing"
	if left := n.left(); left != "" {
		after = kindsOf(left)
	}
	return world, doctor, after
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
