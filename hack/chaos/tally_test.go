// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// tally counts what has happened, by table and row.
type tally struct {
	mu     sync.Mutex
	counts map[string]map[string]int
	// slowest is the longest that a call took which nothing was done to.
	slowest map[string]time.Duration
}

func newTally() *tally {
	return &tally{counts: map[string]map[string]int{}, slowest: map[string]time.Duration{}}
}

func (t *tally) add(table, row string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts[table] == nil {
		t.counts[table] = map[string]int{}
	}
	t.counts[table][row]++
}

func (t *tally) took(call string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slowest[call] = max(t.slowest[call], d)
}

func (t *tally) sum(table string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := 0
	for _, n := range t.counts[table] {
		sum += n
	}
	return sum
}

// rows are the counts of a table, the most frequent first.
func (t *tally) rows(table string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := t.counts[table]
	names := slices.Sorted(maps.Keys(counts))
	slices.SortStableFunc(names, func(a, b string) int { return counts[b] - counts[a] })
	var out []string
	for _, name := range names {
		out = append(out, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(out, ", ")
}

// past keeps the last operations of all lives, in the order of their ends.
type past struct {
	mu   sync.Mutex
	last []string
	next int
}

// remembered is how many operations are kept.
const remembered = 60

func (p *past) add(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last) < remembered {
		p.last = append(p.last, what)
		return
	}
	p.last[p.next] = what
	p.next = (p.next + 1) % remembered
}

func (p *past) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(slices.Concat(p.last[p.next:], p.last[:p.next]), "\n")
}
