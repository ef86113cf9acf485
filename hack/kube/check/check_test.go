// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Each check is told by its name alone, has a namespace of its own, and fits into a table.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range all() {
		if seen[c.name] {
			t.Errorf("two checks have the name %q", c.name)
		}
		seen[c.name] = true
		if strings.Contains(c.name, "|") {
			t.Errorf("%q has a sign of tables", c.name)
		}
		for _, wrong := range validation.IsDNS1123Label("check-999-" + slug(c.name)) {
			t.Errorf("the namespace of %q: %s", c.name, wrong)
		}
	}
}

func TestDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("# Title\n\ntext\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	one, two := all()[0].name, all()[1].name
	for _, run := range []struct {
		column  string
		results []result
	}{
		{"a", []result{{name: one, took: time.Second}, {name: two, took: 2 * time.Second}}},
		{"b", []result{{name: one, took: 3 * time.Second}, {name: "no such check", took: time.Second}}},
		{"a", []result{{name: two, err: errors.New("broken")}}},
	} {
		if err := document(path, run.column, run.results); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, want := range []string{
		"# Title\n\ntext\n\n## The checks\n\n",
		"| check | a | b |\n| --- | ---: | ---: |\n",
		"| " + one + " | 1000 | 3000 |\n",
		"| " + two + " | **fails** |  |\n",
		tableEnds + "\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "no such check") || strings.Count(text, tableBegins) != 1 {
		t.Errorf("too much in\n%s", text)
	}
}

func TestLimitsFromWords(t *testing.T) {
	for text, want := range map[string]limits{
		"67108864 25000 100000 102":       {memory: 64 << 20, quota: 250, shares: 102},
		"9223372036854771712 -1 100000 2": {memory: -1, quota: -1, shares: 2},
		"67108864\n25000 100000\n4\n":     {memory: 64 << 20, quota: 250, shares: 4},
		"max\nmax 100000\n100":            {memory: -1, quota: -1, shares: 100},
	} {
		got, err := parsed(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; wanted %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1 2 3", "1 2 3 x"} {
		if got, err := parsed(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
