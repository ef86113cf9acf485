// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/sandflow-cri/sandflow/hack/conformance"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// Results are what the document says of one runtime: of each spec by its name, how it went.
// Names of specs that passed are not kept, only how many there are in each group.
type Results struct {
	Passed map[string]int
	// Other are the specs that did not pass: their outcomes by group and name.
	Other map[string]map[string]string
}

// Summarize makes results of a run of all specs.
func Summarize(specs []conformance.Spec) Results {
	r := Results{Passed: map[string]int{}, Other: map[string]map[string]string{}}
	for _, s := range specs {
		if s.Outcome == conformance.Passed {
			r.Passed[s.Group]++
			continue
		}
		if r.Other[s.Group] == nil {
			r.Other[s.Group] = map[string]string{}
		}
		r.Other[s.Group][s.Name] = s.Outcome
	}
	return r
}

// tidy takes from the names what all of them have, or what only says how they are run, and
// gives the specs of one area one group.
func tidy(specs []conformance.Spec) []conformance.Spec {
	for i, s := range specs {
		for _, mark := range []string{" [NodeConformance]", " [Conformance]", " [LinuxOnly]", " [Serial]", " [Slow]", " [Beta]"} {
			s.Name = strings.ReplaceAll(s.Name, mark, "")
			s.Group = strings.ReplaceAll(s.Group, mark, "")
		}
		s.Name, s.Group = strings.TrimSpace(s.Name), strings.TrimSpace(s.Group)
		specs[i] = s
	}
	slices.SortFunc(specs, func(a, b conformance.Spec) int { return strings.Compare(a.Name, b.Name) })
	return specs
}

// Save keeps the results of a runtime.
func (r Results) Save(runtime cluster.Runtime) error {
	raw, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(resultsFile(runtime), append(raw, '\n'), 0o644)
}

// groups are all groups, in order.
func (r Results) groups() []string {
	seen := map[string]bool{}
	for g := range r.Passed {
		seen[g] = true
	}
	for g := range r.Other {
		seen[g] = true
	}
	return sorted(seen)
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// counts are the outcomes of a group, or of all if there is none.
func (r Results) counts(groups ...string) string {
	n := map[string]int{}
	for _, g := range groups {
		n[conformance.Passed] += r.Passed[g]
		for _, outcome := range r.Other[g] {
			n[outcome]++
		}
	}
	var parts []string
	for _, outcome := range []string{conformance.Passed, conformance.Failed, conformance.Skipped} {
		if n[outcome] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[outcome], outcome))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// outcome of a spec.
func (r Results) outcome(group, name string) string {
	if o, ok := r.Other[group][name]; ok {
		return o
	}
	return conformance.Passed
}

// resultsFile keeps the results of a runtime from one run to the next.
func resultsFile(runtime cluster.Runtime) string { return "results-" + string(runtime) + ".json" }

// Kept are the results that were kept of a runtime.
func Kept(runtime cluster.Runtime) (Results, error) {
	var r Results
	raw, err := os.ReadFile(resultsFile(runtime))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(raw, &r)
}

//go:embed expected.txt
var expectedText string

// Expected reads the list of what does not pass, and why.
func Expected() ([]conformance.Expectation, error) { return conformance.ParseExpected(expectedText) }
