// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// TestLinks checks that links between documents lead to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "*.md")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	if len(files) < 10 {
		t.Fatalf("only %d documents are found", len(files))
	}
	for _, file := range files {
		file = filepath.Join(cmd.Dir, file)
		for _, found := range link.FindAllStringSubmatch(document(t, file), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := file
			if target != "" {
				to = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: the link to %s: %v", file, found[1], err)
				continue
			}
			if anchor != "" && !anchors(document(t, to))[anchor] {
				t.Errorf("%s: %s has no heading of the link %s", file, to, found[1])
			}
		}
	}
}

// document is the text of a document without what is code in it.
func document(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(raw), "")
}

// anchors are the names by which the headings of a document can be linked to.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		name := dropped.ReplaceAllString(strings.ToLower(h[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}
