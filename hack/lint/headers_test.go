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

var header = regexp.MustCompile(`\A(#![^\n]*\n)?(//|#) Copyright The sandflow Authors\.\n(//|#) SPDX-License-Identifier: Apache-2\.0\n`)

// unfinished are words that finished work does not have.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

// TestSources checks every source file's licence header, and that nothing is marked as unfinished.
func TestSources(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if name := e.Name(); name == "build" || name == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".pb.go"):
		case strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".sh"), strings.HasSuffix(name, ".proto"),
			strings.HasSuffix(name, ".c"), name == "Makefile":
			check(t, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !header.Match(raw) {
		t.Errorf("%s: no licence header", path)
	}
	if word := unfinished.Find(raw); word != nil {
		t.Errorf("%s: has the word %s", path, word)
	}
}
