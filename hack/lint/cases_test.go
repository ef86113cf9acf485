// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testRef  = regexp.MustCompile("`([a-z0-9_/-]+)\\.(Test\\w+)`")
	caseRow  = regexp.MustCompile(`(?m)^\| (\d+) \|.*$`)
	caseTest = regexp.MustCompile(`^TestCase(\d+)`)
)

// TestCases checks that each test named in docs/cases.md exists, that each case there has one,
// and that each number in a test's name is a case there.
func TestCases(t *testing.T) {
	raw, err := os.ReadFile("../../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := allTests(t)
	rows := map[string]bool{}
	for _, row := range caseRow.FindAllStringSubmatch(string(raw), -1) {
		if rows[row[1]] {
			t.Errorf("case %s is there twice", row[1])
		}
		rows[row[1]] = true
		refs := testRef.FindAllStringSubmatch(row[0], -1)
		if len(refs) == 0 {
			t.Errorf("case %s names no test", row[1])
		}
		for _, ref := range refs {
			if !tests[ref[1]+"."+ref[2]] {
				t.Errorf("case %s: there is no test %s in %s", row[1], ref[2], ref[1])
			}
		}
	}
	if len(rows) == 0 {
		t.Error("docs/cases.md has no cases")
	}
	for test := range tests {
		_, name, _ := strings.Cut(test, ".")
		if m := caseTest.FindStringSubmatch(name); m != nil && !rows[m[1]] {
			t.Errorf("%s: docs/cases.md has no case %s", test, m[1])
		}
	}
}

// allTests are the tests of the repository, as "folder.Test".
func allTests(t *testing.T) map[string]bool {
	t.Helper()
	const root = "../.."
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && (e.Name() == "build" || e.Name() == ".git") {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(raw), -1) {
			found[filepath.ToSlash(dir)+"."+m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
