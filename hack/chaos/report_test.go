// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// report is the table of a run.
func (n *node) report(o options, r result) string {
	t := n.tally
	var b strings.Builder
	line := func(what string, cells ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, strings.ReplaceAll(fmt.Sprint(cells...), "|", "\\|"))
	}
	line("what", "how many")
	line("---", "---")
	line("lives", t.sum("lives"))
	line("story", fmt.Sprintf("seed %d, %s", o.seed, r.story))
	line("time", fmt.Sprintf("%s, %.2f s for a life, %d side by side", r.took.Round(time.Second), r.took.Seconds()/float64(max(1, t.sum("lives"))), o.workers))
	line("steps", fmt.Sprintf("%d: %s", t.sum("steps"), t.rows("steps")))
	line("in another way than once", t.rows("ways"))
	line("faults", fmt.Sprintf("%d: %s", t.sum("faults"), t.rows("faults")))
	line("faults whose place was not passed", t.rows("faults not reached"))
	line("calls", fmt.Sprintf("%d: %s", t.sum("calls"), t.rows("calls")))
	line("answers", t.rows("answers"))
	line("what happened", t.rows("happens"))
	line("how containers ended", t.rows("ends"))
	var slow []string
	for _, call := range slices.Sorted(maps.Keys(t.slowest)) {
		slow = append(slow, fmt.Sprintf("%s %.1f s", call, t.slowest[call].Seconds()))
	}
	line("the slowest", strings.Join(slow, ", "))
	return b.String()
}

// Marks around what is generated in the documentation.
const (
	beginMark = "<!-- make chaos: begin -->\n"
	endMark   = "<!-- make chaos: end -->\n"
)

func insert(path, text string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(raw), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s does not have the marks for the figures", path)
	}
	return os.WriteFile(path, []byte(before+beginMark+"\n"+text+"\n"+endMark+after), 0o644)
}
