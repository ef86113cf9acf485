// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"strings"
	"testing"
)

func TestSameSeedSameStory(t *testing.T) {
	const lives = 300
	first, again, other := Hash(1, lives), Hash(1, lives), Hash(2, lives)
	if first != again {
		t.Error("the same seed gives two stories")
	}
	if first == other {
		t.Error("two seeds give the same story")
	}
	alone, once, next := New(1, 7).String(), New(1, 7).String(), New(1, 8).String()
	if alone != once || alone == next {
		t.Error("a life does not follow from its number")
	}
}

// TestEverything checks that a long story has all that can happen, each many times.
func TestEverything(t *testing.T) {
	seen := map[string]int{}
	for i := range 10000 {
		l := New(1, i)
		seen["handler "+l.Handler]++
		for _, c := range l.Containers {
			seen["exits "+string(c.Exits)]++
		}
		for _, s := range l.Steps {
			seen["op "+string(s.Op)]++
			seen["how "+string(s.How)]++
			for _, f := range s.Faults {
				seen["fault "+f.Point]++
				kind, _, _ := strings.Cut(f.Kind, "*")
				if strings.HasPrefix(kind, "sleep") {
					kind = "sleep"
				}
				seen["kind "+kind]++
			}
			if s.With != "" {
				seen[fmt.Sprintf("race %s %s", s.Op, s.With)]++
			}
		}
	}
	for _, how := range []How{Once, Twice, Together, Cancelled, Deadline, Timed, Killed, Raced} {
		if seen["how "+string(how)] < 50 {
			t.Errorf("%q happens %d times", how, seen["how "+string(how)])
		}
	}
	for _, kind := range []string{"fail", "late", "panic", "hang", "sleep", "kill", "killafter", "killshim", "before", "after"} {
		if seen["kind "+kind] < 10 {
			t.Errorf("fault %q happens %d times", kind, seen["kind "+kind])
		}
	}
	for op, p := range paths {
		for _, a := range p.actions {
			if seen["fault "+p.point(a)] == 0 {
				t.Errorf("nothing happens at %s", p.point(a))
			}
		}
		for _, r := range p.records {
			if seen["fault journal:"+r] == 0 {
				t.Errorf("nothing happens at %s", r)
			}
		}
		for _, with := range rivals[op] {
			if seen[fmt.Sprintf("race %s %s", op, with)] == 0 {
				t.Errorf("%s never meets %s", op, with)
			}
		}
	}
}

// TestLivesEnd checks that every life ends with the removal of its pod.
func TestLivesEnd(t *testing.T) {
	for i := range 1000 {
		l := New(3, i)
		last := l.Steps[len(l.Steps)-1]
		if last.Op == Gone {
			last = l.Steps[len(l.Steps)-2]
		}
		if l.Steps[0].Op != RunPodSandbox || last.Op != RemovePodSandbox {
			t.Errorf("%s", l)
		}
		for _, s := range l.Steps {
			if s.How == Timed && s.Millis == 0 || s.How == Cancelled && len(s.Faults) == 0 {
				t.Errorf("%s: when is it given up?", s)
			}
		}
	}
}
