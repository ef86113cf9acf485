// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/steps"
)

// Case 94: versions of OCI runtimes with published holes.
func TestCase94KnownBadRuntimes(t *testing.T) {
	const masks, devLink, restore = "CVE-2025-31133", "CVE-2026-41579", "CVE-2026-119101"
	for text, want := range map[string]string{
		"runc version 1.0.3":                       masks,
		"runc version 1.1.5+ds1\ncommit: x":        masks,
		"runc version 1.1.99":                      masks,
		"runc version 1.2.7":                       masks,
		"runc version 1.2.8":                       devLink,
		"runc version 1.2.8-rc.1":                  masks,
		"runc version 1.3.0":                       masks,
		"runc version 1.3.2":                       masks,
		"runc version 1.3.3":                       devLink,
		"runc version 1.3.6":                       restore,
		"runc version 1.4.0-rc.2":                  masks,
		"runc version 1.4.0-rc.3":                  devLink,
		"runc version 1.4.3":                       restore,
		"runc version 1.4.4":                       "",
		"runc version 1.5.0-rc.2":                  devLink,
		"runc version 1.5.2":                       restore,
		"runc version 1.6.0-rc.1":                  restore,
		"runc version 1.6.0-rc.2":                  "",
		"runc version 1.0.0-rc94":                  "CVE-2021-30465",
		"runc version 1.5.3\nspec: 1.1.1":          "",
		"runc version 1.1.11":                      "CVE-2024-21626",
		"runc version 1.10.0":                      "",
		"runc version 2.0.0":                       "",
		"crun version 1.8.1":                       "CVE-2025-24965",
		"crun version 1.19":                        "CVE-2025-24965",
		"crun version 1.20":                        "CVE-2026-47766",
		"crun version 1.28":                        "",
		"crun version 1.29.1":                      "",
		"kata-runtime  : 1.0.0":                    "",
		"":                                         "",
		"runc version 999999999999999999999.0.0":   "",
		"runc version unknown\nruncversion 1.1.11": "",
	} {
		got := strings.Join(knownBad(text), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if got := strings.Join(knownBad("runc version 1.1.12"), "\n"); strings.Contains(got, "21626") || strings.Contains(got, "30465") {
		t.Errorf("holes that are closed: %v", got)
	}
}

// Case 94: Status tells of a runtime with holes, whether it can tell its features or not.
func TestCase94Condition(t *testing.T) {
	dir := t.TempDir()
	program := func(name, script string) steps.Runtime {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
		return steps.Runtime{Binary: path}
	}
	f := &handlerFeatures{}
	f.detect(t.Context(), steps.Config{Runtimes: map[string]steps.Runtime{
		"new": program("new", `echo '{"annotations": {"org.opencontainers.runc.version": "1.5.3"}}'`), "vm": {},
	}})
	if c := f.safe(); !c.GetStatus() || c.GetType() != runtimesSafe {
		t.Errorf("without holes: %v", c)
	}
	f.detect(t.Context(), steps.Config{Runtimes: map[string]steps.Runtime{
		"tells": program("tells", `[ $1 = features ] && echo '{"annotations": {"org.opencontainers.runc.version": "1.3.2"}}'`),
		"old":   program("old", `[ $1 = --version ] && echo 'runc version 1.0.3'`),
	}})
	c := f.safe()
	if c.GetStatus() || c.GetReason() == "" || !strings.Contains(c.GetMessage(), "handler old: runc version 1.0.3") || !strings.Contains(c.GetMessage(), "handler tells") {
		t.Errorf("with holes: %v", c)
	}
}
