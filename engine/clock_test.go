// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// TestTimesSurviveAClockThatIsSet: how long a subject has been stuck, and when it is tried
// again, is measured by the monotonic clock, also after a restart.
func TestTimesSurviveAClockThatIsSet(t *testing.T) {
	w, j := newWorld(), newMemory()
	e := boot(t, w, j)
	b := &bench{Engine: e, t: t, w: w}
	b.must("pod create 1")
	w.set("undo-net", errBoom)
	isError(t, b.do(t.Context(), "pod destroy 1"), errBoom)
	monotonic := func(e *engine.Engine) time.Duration {
		t.Helper()
		v, _ := e.Get("pod", "1")
		for what, at := range map[string]time.Time{"retry": v.Retry, "since": v.Since} {
			if !strings.Contains(at.String(), " m=") {
				t.Errorf("%s is %s: no monotonic reading", what, at)
			}
		}
		return time.Since(v.Since)
	}
	monotonic(e)
	closeEngine(t, e)
	raw := string(j.data["pod/1"])
	// Two hours ago, by a clock that has been right since; and then one that was fast.
	for _, c := range []struct{ by, low, high time.Duration }{
		{-2 * time.Hour, 2 * time.Hour, 2*time.Hour + time.Minute}, {300 * time.Hour, 0, time.Minute},
	} {
		_, rest, _ := strings.Cut(raw, `"since":"`)
		was, _, _ := strings.Cut(rest, `"`)
		j.data["pod/1"] = []byte(strings.ReplaceAll(raw, was, time.Now().Add(c.by).UTC().Format(time.RFC3339Nano)))
		e = boot(t, w, j)
		if age := monotonic(e); age < c.low || age > c.high {
			t.Errorf("stuck for %s, want between %s and %s", age, c.low, c.high)
		}
		closeEngine(t, e)
	}
}

// TestNowIsNotBeforeEvents also when the clock is set back.
func TestNowIsNotBeforeEvents(t *testing.T) {
	b := newBench(t)
	s, _ := b.Subscribe(100)
	defer s.Close()
	b.must("pod create 1")
	now := b.Now()
	for range 2 { // climbing, standing
		event, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if event.At.After(now) {
			t.Errorf("an event of %s was seen at %s", event.At, now)
		}
	}
}
