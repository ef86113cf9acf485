// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/semver"
)

var (
	securityRow = regexp.MustCompile(`(?m)^\| ((?:CVE|GHSA)-[0-9a-z-]+) \|.*$`)
	cveTest     = regexp.MustCompile(`^TestCVE_(\d+)_(\d+)$`)
	leastRow    = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (v[0-9.]+) \\| (CVE-[0-9-]+) \\|$")
)

func security(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestSecurity checks that each test named in SECURITY.md exists, that each vulnerability
// there has one and is there once, and that those that tests are called after are there.
func TestSecurity(t *testing.T) {
	text := security(t)
	tests := allTests(t)
	for _, ref := range testRef.FindAllStringSubmatch(text, -1) {
		if !tests[ref[1]+"."+ref[2]] {
			t.Errorf("there is no test %s in %s", ref[2], ref[1])
		}
	}
	rows := map[string]bool{}
	for _, row := range securityRow.FindAllStringSubmatch(text, -1) {
		if rows[row[1]] {
			t.Errorf("%s is there twice", row[1])
		}
		rows[row[1]] = true
		if !testRef.MatchString(row[0]) {
			t.Errorf("%s names no test", row[1])
		}
	}
	const least = 60 // it was more when this was written
	if len(rows) < least {
		t.Errorf("SECURITY.md has %d vulnerabilities", len(rows))
	}
	for test := range tests {
		_, name, _ := strings.Cut(test, ".")
		if m := cveTest.FindStringSubmatch(name); m != nil && !rows["CVE-"+m[1]+"-"+m[2]] {
			t.Errorf("%s: SECURITY.md has no such vulnerability", test)
		}
	}
}

// TestLeastVersions checks that nothing is used that is older than SECURITY.md wants.
func TestLeastVersions(t *testing.T) {
	text := security(t)
	var used strings.Builder
	for _, path := range []string{"../../go.mod", "../versions.env"} {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used.Write(raw)
	}
	rows := leastRow.FindAllStringSubmatch(text, -1)
	if len(rows) == 0 {
		t.Error("SECURITY.md wants no versions")
	}
	for _, row := range rows {
		part, want := row[1], row[2]
		found := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(part) + `[ =](v[0-9a-z.-]+)`).FindStringSubmatch(used.String())
		if found == nil || semver.Compare(found[1], want) < 0 {
			t.Errorf("%s: %q is used, and %s is wanted for %s", part, found, want, row[3])
		}
		if !strings.Contains(text, "| "+row[3]+" |") {
			t.Errorf("%s is wanted for %s, of which nothing is said", part, row[3])
		}
	}
}
