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

// Repeat is one of several runs of all specs, each with a daemon of its own.
type Repeat struct {
	// Parallel is how many specs ran at once.
	Parallel                int
	Passed, Skipped, Failed int
	Seconds                 int
	// Unexpected are the names of specs that neither passed nor are in expected.txt.
	Unexpected []string `json:",omitempty"`
}

// repeatsFile keeps them; "make conformance-repeat" writes it.
const repeatsFile = "repeats.json"

//go:embed repeats.json
var repeatsRaw []byte

// Repeats are the last such runs.
func Repeats() ([]Repeat, error) {
	var all []Repeat
	err := json.Unmarshal(repeatsRaw, &all)
	return all, err
}

func saveRepeats(all []Repeat) error {
	raw, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(repeatsFile, append(raw, '\n'), 0o644)
}

// repeatTable lists the runs in their order.
func repeatTable(b *strings.Builder, all []Repeat) {
	b.WriteString("## One run after the other\n\n" +
		"\"make conformance-repeat\" runs all specs three times one by one and three times six at once, each time\n" +
		"with a new daemon. A spec that fails in one of them only would show here.\n\n" +
		"| run | at once | pass | skip | fail | seconds |\n|---|---|---|---|---|---|\n")
	for i, r := range all {
		fmt.Fprintf(b, "| %d | %d | %d | %d | %d | %d |\n", i+1, r.Parallel, r.Passed, r.Skipped, r.Failed, r.Seconds)
	}
	b.WriteByte('\n')
}
