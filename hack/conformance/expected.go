// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
)

//go:embed expected.txt
var expectedText string

// Expectation is a line of expected.txt: what specs of that name do instead of passing.
type Expectation struct {
	Outcome string
	Name    *regexp.Regexp
	Reason  string
}

// Expected reads the built-in list.
func Expected() ([]Expectation, error) { return ParseExpected(expectedText) }

// ParseExpected reads such a list: lines of "fail|skip PATTERN # REASON", and comments.
func ParseExpected(text string) ([]Expectation, error) {
	var out []Expectation
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, reason, ok := strings.Cut(line, " # ")
		outcome, pattern, ok2 := strings.Cut(rule, " ")
		if !ok || !ok2 || outcome != Failed && outcome != Skipped {
			return nil, fmt.Errorf("expected.txt:%d: want \"fail|skip PATTERN # REASON\"", n)
		}
		name, err := regexp.Compile(strings.TrimSpace(pattern))
		if err != nil {
			return nil, fmt.Errorf("expected.txt:%d: %w", n, err)
		}
		out = append(out, Expectation{Outcome: outcome, Name: name, Reason: reason})
	}
	return out, nil
}

// Judge tells what is wrong with a spec's outcome; empty if it is as expected.
func Judge(expected []Expectation, s Spec) string {
	for _, e := range expected {
		if !e.Name.MatchString(s.Name) {
			continue
		}
		switch s.Outcome {
		case e.Outcome:
			return ""
		case Passed:
			return fmt.Sprintf("passes now, though expected.txt says it does not (%s): strike it there", e.Reason)
		}
	}
	if s.Outcome == Passed {
		return ""
	}
	return s.Outcome + ": " + s.Why
}
