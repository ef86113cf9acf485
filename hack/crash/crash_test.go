// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"hash/crc32"
	"strings"
)

// crashes kills the daemon at each place of a life, before and after, and twice in a row.
func (n *node) crashes() {
	for _, handler := range []string{"", "boxed"} {
		for i, s := range stages {
			for _, place := range n.places(handler, i) {
				row := []string{"", "", ""}
				for k, how := range []string{"kill", "killafter", "kill twice"} {
					if !wanted(handler, place, how) {
						continue
					}
					n.try(fmt.Sprintf("%s %s %s", s.name, place, how), func() {
						row[k] = n.crash(handler, i, place, how)
					})
				}
				if strings.Join(row, "") != "" {
					if handler != "" {
						place += " (containerd's shim)"
					}
					report("crash", s.name, place, row)
				}
			}
		}
	}
}

// wanted says whether a place is part of this run: the short form has each action once up and
// down, and some of the records.
func wanted(handler, place, how string) bool {
	if handler != "" && !strings.Contains(place, "sandbox-container") && !strings.HasSuffix(place, ":task") {
		return false // the same as for other handlers, which are told already
	}
	if full() {
		return true
	}
	// Each place is left out or in for good, whatever the order.
	sum := crc32.ChecksumIEEE([]byte(place))
	switch {
	case strings.Contains(place, "/"):
		return how == []string{"kill", "killafter"}[sum%2]
	case strings.HasPrefix(place, "journal:"):
		return how == "killafter" && sum%3 == 0
	default:
		return false
	}
}

// places are what the daemon passes in a stage.
func (n *node) places(handler string, stage int) []string {
	n.t.Helper()
	l := n.life(handler)
	must(n.t, l.span(0, stage))
	n.quiet()
	points := n.traced(func() {
		must(n.t, l.do(stages[stage]))
		n.quiet()
	})
	must(n.t, l.from(stage+1))
	return points
}

// crash kills the daemon at a place within a stage, starts it again, lets the client repeat its
// call, and lives to the end. It gives what the client finds after the crash.
func (n *node) crash(handler string, stage int, place, how string) string {
	n.t.Helper()
	l := n.life(handler)
	if err := l.span(0, stage); err != nil {
		n.t.Fatal(err)
	}
	n.quiet()
	n.fault(place + "=" + strings.TrimSuffix(how, " twice"))
	if !n.dies(func() { _ = l.do(stages[stage]) }) {
		n.t.Fatalf("%s is not reached", place)
	}
	must(n.t, n.daemon.Kill())
	if how == "kill twice" {
		n.again(l, stage)
	}
	n.fault()
	must(n.t, n.daemon.Start(n.t.Context()))
	found := l.state()
	n.healthy()
	if err := l.repeat(stages[stage]); err != nil {
		n.t.Fatal(err)
	}
	if err := l.from(stage + 1); err != nil {
		n.t.Error(err)
	}
	n.same()
	return found
}

// again starts the daemon with the fault still there: it is killed while it recovers, or when
// the call is repeated, or never if the place is not passed any more.
func (n *node) again(l *life, stage int) {
	n.t.Helper()
	if err := n.daemon.Start(n.t.Context()); err != nil {
		return // killed while recovering
	}
	n.dies(func() { _ = l.repeat(stages[stage]) })
	must(n.t, n.daemon.Kill())
}
