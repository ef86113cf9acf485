// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// Results are what the document about conformance says of one runtime.
type Results struct {
	// Groups are counts of outcomes by critest's group of specs.
	Groups map[string]map[string]int
	// Order lists the groups.
	Order []string
	// Skipped are the names of specs that did not run.
	Skipped []string
	RPCs    []RPC
}

// Summarize makes results of a run of all specs and of the calls.
func Summarize(specs []Spec, rpcs []RPC) Results {
	r := Results{Groups: map[string]map[string]int{}, RPCs: rpcs}
	for _, s := range specs {
		if r.Groups[s.Group] == nil {
			r.Order = append(r.Order, s.Group)
		}
		r.Groups[s.Group] = sum(r.Groups[s.Group], s.Outcome)
		if s.Outcome == Skipped {
			r.Skipped = append(r.Skipped, s.Name)
		}
	}
	return r
}

// Save writes results where Load, or the next build, finds them.
func (r Results) Save(path string) error {
	raw, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

func (r Results) total(outcome string) int {
	n := 0
	for _, g := range r.Groups {
		n += g[outcome]
	}
	return n
}

func (r Results) counts(group string) string {
	g, ok := r.Groups[group]
	if !ok {
		return "none"
	}
	var parts []string
	for _, outcome := range []string{Passed, Failed, Skipped} {
		if g[outcome] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", g[outcome], outcome))
		}
	}
	return strings.Join(parts, ", ")
}

// peerFile keeps the peer's results, which change only with its version.
const peerFile = "containerd.json"

//go:embed containerd.json
var peerRaw []byte

// Peer are the results of the other runtime that is tested with the same means.
func Peer() (Results, error) {
	var r Results
	err := json.Unmarshal(peerRaw, &r)
	return r, err
}
