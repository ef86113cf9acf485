// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// recordVersion is raised when an older sandflow would misread a record. It is the
// number of the journal's format as well (see boltFormat).
const recordVersion = 1

var errNewer = errors.New("written by a newer sandflow")

// record is what the journal keeps of a subject.
type record struct {
	Version  int    `json:"v"`
	Workflow string `json:"workflow"`
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	Phase    Phase  `json:"phase"`
	Station  string `json:"station"`
	// Goal is the station that a crash, a failure or a retry descends to.
	Goal string `json:"goal"`
	// Rungs are the steps entered and not known to be undone, lowest first.
	// They name actions, so that a changed configuration undoes what an older
	// one did.
	Rungs []rung `json:"rungs,omitempty"`
	// Cause is why the last climb failed, Error why the last descent did.
	Cause    string       `json:"cause,omitempty"`
	Error    string       `json:"error,omitempty"`
	Attempts int          `json:"attempts,omitempty"`
	Retry    time.Time    `json:"retry,omitzero"`
	Since    time.Time    `json:"since,omitzero"` // when the descent got stuck first
	Created  time.Time    `json:"created"`
	Changed  time.Time    `json:"changed"`
	Slots    map[Key]*box `json:"slots,omitempty"` // copied on write: Views share it
}

// rung is one step: its actions, and the station where its flow began.
type rung struct {
	Base    string   `json:"base"`
	Actions []string `json:"actions"`
}

func (b *box) MarshalJSON() ([]byte, error) { return b.raw, nil }

func (b *box) UnmarshalJSON(raw []byte) error {
	b.raw = slices.Clone(raw)
	return nil
}

func recordKey(workflow, id string) string { return workflow + "/" + id }

func splitKey(key string) (workflow, id string) {
	workflow, id, _ = strings.Cut(key, "/")
	return workflow, id
}

func (r *record) encode() ([]byte, error) {
	r.Version = recordVersion
	kept := *r
	kept.Retry, kept.Since = r.Retry.UTC(), r.Since.UTC()
	data, err := json.Marshal(kept)
	if err != nil {
		return nil, fmt.Errorf("encode the record of %s %s: %w", r.Workflow, r.ID, err)
	}
	return data, nil
}

// decode reads the record under key. With an error the record still has the
// key's workflow and id, and the name if that can be read.
func decode(key string, data []byte) (record, error) {
	var r record
	err := json.Unmarshal(data, &r)
	workflow, id := splitKey(key)
	switch {
	case r.Version > recordVersion:
		// Looked at first: a newer record may well not fit our types.
		err = fmt.Errorf("record version %d, known is %d: %w", r.Version, recordVersion, errNewer)
	case err != nil:
	case r.Version < 1:
		err = fmt.Errorf("record version %d", r.Version)
	case r.Workflow != workflow || r.ID != id:
		err = fmt.Errorf("the record is of %q %q", r.Workflow, r.ID)
	case !slices.Contains([]Phase{Standing, Climbing, Descending, Stuck}, r.Phase):
		err = fmt.Errorf("unknown phase %q", r.Phase)
	}
	for k, b := range r.Slots {
		if b == nil { // JSON null
			r.Slots[k] = &box{raw: json.RawMessage("null")}
		}
	}
	if err != nil {
		err = fmt.Errorf("read the record %q: %w", key, err)
		r = record{Workflow: workflow, ID: id, Name: cmp.Or(r.Name, nameIn(data)), Phase: Standing}
	}
	return r, err
}

// nameIn finds the name in a record that is whole at least up to there.
func nameIn(data []byte) string {
	d := json.NewDecoder(bytes.NewReader(data))
	if _, err := d.Token(); err != nil { // the brace
		return ""
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return ""
		}
		var value any
		if d.Decode(&value) != nil {
			return ""
		}
		if name, ok := value.(string); ok && key == "name" {
			return name
		}
	}
	return ""
}

// fill sets values without touching the map that Views share.
func (r *record) fill(values []Value) {
	if len(values) == 0 {
		return
	}
	next := maps.Clone(r.Slots)
	if next == nil {
		next = make(map[Key]*box, len(values))
	}
	for _, v := range values {
		next[v.key] = v.box
	}
	r.Slots = next
}

// unset clears slots before they are filled anew.
func (r *record) unset(keys []Key) {
	next := maps.Clone(r.Slots)
	for _, k := range keys {
		delete(next, k)
	}
	r.Slots = next
}

// drop forgets actions that were undone.
func (r *record) drop(undone []string) {
	kept := make([]rung, 0, len(r.Rungs))
	for _, g := range r.Rungs {
		left := make([]string, 0, len(g.Actions))
		for _, a := range g.Actions {
			if !slices.Contains(undone, a) {
				left = append(left, a)
			}
		}
		if len(left) > 0 {
			kept = append(kept, rung{Base: g.Base, Actions: left})
		}
	}
	r.Rungs = kept
}

func (r *record) view() *View {
	v := &View{
		Workflow: r.Workflow, ID: r.ID, Name: r.Name,
		Station: r.Station, Phase: r.Phase, Error: r.Cause,
		Attempts: r.Attempts, Retry: r.Retry, Since: r.Since,
		Created: r.Created, Changed: r.Changed, slots: r.Slots,
	}
	if r.Error != "" {
		v.Error = r.Error
	}
	if r.Phase == Stuck {
		v.Since = r.stuckSince()
	}
	return v
}

// stuckSince is when the descent got stuck; a record of an older version does not say.
func (r *record) stuckSince() time.Time {
	if r.Since.IsZero() {
		return r.Changed
	}
	return r.Since
}
