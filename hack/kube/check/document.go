// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The table in a document lies between these lines.
const (
	tableBegins = "<!-- checks: written by kubelab check --document -->"
	tableEnds   = "<!-- end of checks -->"
)

// table has a row for each check and a column for each kind of run.
type table struct {
	columns []string
	// cells are by check and column.
	cells map[string]map[string]string
}

// document writes results into a column of the table of checks of a Markdown file. The table
// is made at the file's end if it has none; rows of checks that are no more are dropped.
func document(path, column string, results []result) error {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	before, rest, found := strings.Cut(string(raw), tableBegins)
	old, after, ended := strings.Cut(rest, tableEnds)
	if found && !ended {
		return fmt.Errorf("%s: the table of checks has no end", path)
	}
	if !found {
		before, after = strings.TrimRight(before, "\n")+"\n\n## The checks\n\n", "\n"
	}
	t := readTable(old)
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}
	for _, r := range results {
		text := strconv.FormatInt(r.took.Milliseconds(), 10)
		if r.err != nil {
			text = "**fails**"
		}
		t.set(r.name, column, text)
	}
	return os.WriteFile(path, []byte(before+tableBegins+"\n"+t.String()+tableEnds+after), 0o644)
}

func (t *table) set(row, column, text string) {
	if t.cells[row] == nil {
		t.cells[row] = map[string]string{}
	}
	t.cells[row][column] = text
}

// readTable reads what String wrote.
func readTable(text string) *table {
	t := &table{cells: map[string]map[string]string{}}
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch {
		case len(cells) < 2 || i == 1: // the line below the head
		case i == 0:
			t.columns = cells[1:]
		default:
			for j, text := range cells[1:min(len(cells), 1+len(t.columns))] {
				t.set(cells[0], t.columns[j], text)
			}
		}
	}
	return t
}

// String is the table in Markdown, with the checks in their order.
func (t *table) String() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(append([]string{"check"}, t.columns...))
	rule := []string{"---"}
	for range t.columns {
		rule = append(rule, "---:")
	}
	line(rule)
	for _, c := range all() {
		row := []string{c.name}
		for _, column := range t.columns {
			row = append(row, t.cells[c.name][column])
		}
		line(row)
	}
	return b.String()
}
