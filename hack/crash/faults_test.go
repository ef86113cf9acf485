// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// impatient is the deadline of a caller whose action is slow.
const impatient = 500 * time.Millisecond

// failures makes each action fail in each way: for ever, until the fault is taken back.
func (n *node) failures() {
	kinds := []string{"fail", "late", "sleep20s", "stall", "panic"}
	for i, a := range n.actions() {
		row := []string{a.name, "", "", "", "", ""}
		for k, kind := range kinds {
			if !a.passed {
				row[k+1] = "not passed"
				continue
			}
			if full() || (i+k)%len(kinds) == 0 {
				n.try(a.name+" "+kind, func() { row[k+1] = n.failing(a, kind) })
			}
		}
		report("faults", row)
	}
}

// failing lets an action fail twice, then not any more.
func (n *node) failing(a action, kind string) string {
	n.t.Helper()
	l := n.life(a.handler)
	must(n.t, l.span(0, a.up))
	before := l.state()
	n.fault("do:" + a.name + "=" + kind)
	answer := ""
	for range 2 {
		if kind == "sleep20s" || kind == "stall" {
			l.timeout = impatient
		}
		err := l.do(stages[a.up])
		l.timeout = rpcTimeout
		if err == nil {
			n.t.Fatal("the call succeeds in spite of the fault")
		}
		answer = code(err)
		if kind == "stall" { // it ends when the fault does
			n.fault()
			n.quiet()
			n.fault("do:" + a.name + "=" + kind)
		}
		if a.up == 2 { // a container that was not started has ended, with a reason
			l.failedStart()
		} else if found := l.settled(); found != before {
			n.t.Errorf("after the call it is %s, before it was %s", found, before)
		}
		n.healthy()
	}
	n.fault()
	if err := l.repeat(stages[a.up]); err != nil {
		n.t.Fatal(err)
	}
	if err := l.from(a.up + 1); err != nil {
		n.t.Error(err)
	}
	n.same()
	return answer
}

// failedStart checks a container whose start failed, and makes another.
func (l *life) failedStart() {
	l.n.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	if found := l.settled(); found != "exited" && found != "created" {
		l.n.t.Errorf("after a failed start the container is %s", found)
	}
	if err := l.remove(ctx); err != nil {
		l.n.t.Error(err)
	}
	l.ctr.Metadata.Attempt++
	if err := l.create(ctx); err != nil {
		l.n.t.Error(err)
	}
}

// stuckUndos makes each undo fail in each way.
func (n *node) stuckUndos() {
	kinds := []string{"fail*1", "fail*10", "fail", "sleep1s", "stall", "panic"}
	for i, a := range n.actions() {
		row := []string{a.name, "", "", "", "", "", ""}
		for k, kind := range kinds {
			if !a.passed {
				row[k+1] = "not passed"
				continue
			}
			if full() || kind != "fail*10" && (i+k)%len(kinds) == 0 {
				n.try(a.name+" "+kind, func() { row[k+1] = n.sticking(a, kind) })
			}
		}
		report("undos", row)
	}
}

// sticking has an undo fail, and looks whether that is seen, and ends when the fault does.
func (n *node) sticking(a action, kind string) string {
	n.t.Helper()
	l := n.life(a.handler)
	must(n.t, l.span(0, a.down))
	n.quiet()
	n.fault("undo:" + a.name + "=" + kind)
	if kind == "sleep1s" {
		l.timeout = impatient
	}
	err := l.do(stages[a.down])
	l.timeout = rpcTimeout
	answer := code(err)
	tries := 0
	switch kind {
	case "sleep1s": // it goes on without its caller
		n.waitFor("the undo", func() bool { return n.uses("undo:"+a.name+"=sleep1s") > 0 })
		n.quiet()
		if _, s := n.flows(); len(s) > 0 {
			n.t.Errorf("stuck: %v", s)
		}
	case "fail*1", "fail*10":
		want, _ := strconv.Atoi(strings.TrimPrefix(kind, "fail*"))
		n.waitFor("the tries", func() bool {
			_, s := n.flows()
			for _, x := range s {
				tries = max(tries, x.Attempts)
			}
			return len(s) == 0 && (tries >= want || n.usedUp(a, want))
		})
	default:
		n.seen(l, a)
		another := n.others()
		lifted := time.Now()
		n.fault()
		n.noStuck()
		must(n.t, another.from(3))
		if took := time.Since(lifted); took > maxBackoff+undoTimeout {
			n.t.Errorf("it took %s after the fault's end", took)
		}
	}
	n.fault()
	n.quiet()
	if err := l.repeat(stages[a.down]); err != nil {
		n.t.Error(err)
	}
	n.finish(l)
	return answer
}

// usedUp says whether a limited fault was injected as often as it can be.
func (n *node) usedUp(a action, times int) bool {
	return n.uses("undo:"+a.name+"=fail") >= times
}

// seen checks that what is stuck is visible everywhere.
func (n *node) seen(l *life, a action) {
	n.t.Helper()
	what := ""
	n.waitFor("what is stuck to be told of", func() bool {
		_, all := n.flows()
		for _, s := range all {
			if strings.Contains(s.Error, a.name) && s.Attempts > 0 {
				what = s.Workflow
				return true
			}
		}
		return false
	})
	if a.up == 0 {
		if found := l.state(); found != "not ready" && found != "exited" {
			n.t.Errorf("it is stuck, and listed as %s", found)
		}
	} else if found := l.state(); found != "exited" {
		n.t.Errorf("it is stuck, and listed as %s", found)
	}
	if status, out := n.sandflow("doctor"); status != 4 || !strings.Contains(out, a.name) {
		n.t.Errorf("the doctor ends with %d, and says\n%s", status, out)
	}
	n.waitFor("the metric", func() bool { return n.oldest(what) > minBackoff.Seconds() })
}

// oldest is the metric of how long something has been stuck, in seconds.
func (n *node) oldest(workflow string) float64 {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), rpcTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.metrics+"/metrics", nil)
	must(n.t, err)
	r, err := http.DefaultClient.Do(req)
	must(n.t, err)
	raw, err := io.ReadAll(r.Body)
	must(n.t, errors.Join(err, r.Body.Close()))
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, fmt.Sprintf("sandflow_stuck_oldest_seconds{workflow=%q} ", workflow)); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			must(n.t, err)
			return f
		}
	}
	n.t.Fatal("there is no metric of the oldest that is stuck")
	return 0
}

// others checks that what is stuck keeps nobody else from coming. What came is still there.
func (n *node) others() *life {
	n.t.Helper()
	l := n.life("")
	if err := l.span(0, 3); err != nil {
		n.t.Errorf("another pod cannot be run: %v", err)
	}
	return l
}
