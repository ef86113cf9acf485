// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestCRIU(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ script, want string }{
		"works":         {"exit 0", ""},
		"fails":         {"echo 'Error (criu/cr-check.c:1): no such thing'; echo bye; exit 1", "no such thing"},
		"not installed": {"", "not installed"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			asked := program + ".asked"
			if c.script != "" {
				text := "#!/bin/sh\necho \"$@\" >> " + asked + "\n" + c.script + "\n"
				if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			criu := CRIU{Program: program}
			for range 2 {
				err := criu.Usable(t.Context())
				if c.want == "" && err != nil {
					t.Error(err)
				}
				if c.want != "" && (!errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "criu") || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("error %v", err)
				}
			}
			if raw, _ := os.ReadFile(asked); c.script != "" && string(raw) != "check\n" {
				t.Errorf("it was asked %q", raw)
			}
		})
	}
}
