// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// entriesPerSubject bounds the story of one that is stuck for long.
const entriesPerSubject = 512

// Outcomes of an Entry.
const (
	OutcomeOK        = "ok"
	OutcomeFailed    = "failed"
	OutcomeSkipped   = "skipped"
	OutcomeRunning   = "running"
	OutcomeCancelled = "cancelled"
)

// Timeline is an Observer that keeps the spans of the last N subjects, also
// after they are gone.
type Timeline struct {
	subjects int

	mu      sync.Mutex
	order   []string // oldest first
	entries map[string][]*Entry
}

// Entry is a span with its times.
type Entry struct {
	Span
	Start    time.Time
	Duration time.Duration // so far, if it is running
	Outcome  string        // ok, failed, skipped, running, cancelled
	Error    string
}

// NewTimeline keeps the spans of that many subjects.
func NewTimeline(subjects int) *Timeline {
	return &Timeline{subjects: max(1, subjects), entries: map[string][]*Entry{}}
}

// Around records the span.
func (t *Timeline) Around(ctx context.Context, s Span, next func(context.Context) error) error {
	if s.ID == "" {
		return next(ctx)
	}
	entry := t.begin(s)
	err := next(ctx)
	t.end(entry, err)
	return err
}

func (t *Timeline) begin(s Span) *Entry {
	entry := &Entry{Span: s, Start: time.Now(), Outcome: OutcomeRunning}
	t.mu.Lock()
	defer t.mu.Unlock()
	have, known := t.entries[s.ID]
	if !known {
		t.order = append(t.order, s.ID)
		if len(t.order) > t.subjects {
			delete(t.entries, t.order[0])
			t.order = slices.Delete(t.order, 0, 1)
		}
	}
	if len(have) >= entriesPerSubject {
		have = slices.Delete(have, 0, 1)
	}
	t.entries[s.ID] = append(have, entry)
	return entry
}

func (t *Timeline) end(entry *Entry, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	entry.Duration = time.Since(entry.Start)
	switch {
	case !entry.Down && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)):
		entry.Outcome = OutcomeCancelled
	case err != nil:
		entry.Outcome = OutcomeFailed
	case entry.Skipped:
		entry.Outcome = OutcomeSkipped
	default:
		entry.Outcome = OutcomeOK
	}
	if err != nil {
		entry.Error = err.Error()
	}
}

// Of gives the spans of one subject in the order of their start.
func (t *Timeline) Of(id string) ([]Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have, ok := t.entries[id]
	list := make([]Entry, len(have))
	for i, entry := range have {
		list[i] = *entry
		if entry.Outcome == OutcomeRunning {
			list[i].Duration = time.Since(entry.Start)
		}
	}
	return list, ok
}

// IDs gives the subjects, newest first.
func (t *Timeline) IDs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := slices.Clone(t.order)
	slices.Reverse(ids)
	return ids
}
