// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	docsFile  = "../../../docs/configuration.md"
	docsBegin = "<!-- begin: made from default.toml; SANDFLOW_DOCS=1 go test ./cmd/internal/config -run TestDocs -->\n"
	docsEnd   = "<!-- end -->\n"
)

// docRow is one or more keys with a common meaning.
type docRow struct {
	keys, defaults []string
	meaning        string
}

// docTable is a table of default.toml.
type docTable struct {
	name, meaning string
	rows          []docRow
}

var (
	docHeader = regexp.MustCompile(`^\[(.+)\]$`)
	docKey    = regexp.MustCompile(`^(# )?([a-z_]+) = (.*)$`)
)

// docTables reads default.toml as people do: a comment belongs to the keys that follow it.
func docTables(text string) []docTable {
	tables := []docTable{{}}
	comment := ""
	for _, line := range strings.Split(text, "\n") {
		t := &tables[len(tables)-1]
		switch header, key := docHeader.FindStringSubmatch(line), docKey.FindStringSubmatch(line); {
		case header != nil:
			tables = append(tables, docTable{name: header[1], meaning: comment})
			comment = ""
		case key != nil && (key[1] == "" || strings.HasPrefix(t.name, "workflows.")):
			if comment != "" || len(t.rows) == 0 {
				t.rows = append(t.rows, docRow{meaning: comment})
			}
			r := &t.rows[len(t.rows)-1]
			r.keys, r.defaults = append(r.keys, key[2]), append(r.defaults, key[3])
			comment = ""
		case strings.HasPrefix(line, "#"):
			comment = strings.TrimSpace(comment + " " + strings.TrimPrefix(strings.TrimPrefix(line, "#"), " "))
		case line == "":
			if len(t.rows) == 0 && t.name == "" {
				comment = "" // of the file
			}
		}
	}
	return tables
}

// docText writes the tables as Markdown.
func docText(tables []docTable) string {
	var b strings.Builder
	for _, t := range tables {
		name := "`[" + t.name + "]`"
		if t.name == "" {
			name = "At the top"
		}
		fmt.Fprintf(&b, "### %s\n\n", name)
		if t.meaning != "" {
			fmt.Fprintf(&b, "%s\n\n", docEscape.Replace(t.meaning))
		}
		b.WriteString(docTableText(t))
	}
	return b.String()
}

// docEscape keeps Markdown from taking patterns for emphasis, and columns for more.
var docEscape = strings.NewReplacer("*", "\\*", "|", "\\|")

func docTableText(t docTable) string {
	var b strings.Builder
	switch {
	case len(t.rows) == 0:
		return ""
	case t.rows[0].meaning == "": // a flow: they all have the same keys
		b.WriteString("| Key | Default |\n|---|---|\n")
		for i, k := range t.rows[0].keys {
			fmt.Fprintf(&b, "| `%s` | `%s` |\n", k, t.rows[0].defaults[i])
		}
	default:
		b.WriteString("| Key | Default | Meaning |\n|---|---|---|\n")
		for _, r := range t.rows {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n",
				strings.Join(r.keys, "`<br>`"), strings.Join(r.defaults, "`<br>`"), docEscape.Replace(r.meaning))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// TestDocs keeps docs/configuration.md the same as default.toml, and both complete.
func TestDocs(t *testing.T) {
	tables := docTables(string(DefaultText()))
	documented := map[string]bool{}
	for _, table := range tables {
		documented[table.name] = true // a table that is passed on as it is
		for _, r := range table.rows {
			if r.meaning == "" && !strings.HasPrefix(table.name, "workflows.") {
				t.Errorf("default.toml does not say what %q of [%s] mean", r.keys, table.name)
			}
			for _, k := range r.keys {
				documented[join2(table.name, k)] = true
			}
		}
	}
	for _, key := range keysOf("", reflect.TypeFor[Config]()) {
		if !documented[key] {
			t.Errorf("docs/configuration.md would have no %s", key)
		}
	}
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range Default().flows() {
		for _, f := range w.flows {
			for _, action := range slices.Concat(f.steps...) {
				if !strings.Contains(string(text), "| `"+action+"` |") {
					t.Errorf("docs/configuration.md does not say what the action %s does", action)
				}
			}
		}
	}
	before, rest, ok := strings.Cut(string(text), docsBegin)
	_, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		t.Fatalf("docs/configuration.md lacks the lines %q and %q", docsBegin, docsEnd)
	}
	want := before + docsBegin + "\n" + docText(tables) + docsEnd + after
	if want == string(text) {
		return
	}
	if os.Getenv("SANDFLOW_DOCS") == "" {
		t.Fatal("docs/configuration.md is not made from default.toml: SANDFLOW_DOCS=1 go test ./cmd/internal/config -run TestDocs")
	}
	if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil { //nolint:gosec // a document
		t.Fatal(err)
	}
}
