// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/sandflow-cri/sandflow/"

// rules say what the packages of a folder may import of this module (besides their own folder),
// and, where only is set, of other modules. The arrows point down: cmd → cri → steps → cni, snapshot.
var rules = map[string]struct {
	may  []string
	only []string
}{
	"engine":   {may: nil, only: []string{"go.etcd.io/bbolt", "golang.org/x/"}},
	"cni":      {may: nil},
	"snapshot": {may: nil},
	"steps":    {may: []string{"engine", "cni", "snapshot"}},
	"cri":      {may: []string{"engine", "steps", "cni", "snapshot"}},
	"cmd":      {may: []string{"engine", "steps", "cni", "snapshot", "cri"}},
	"deploy":   {may: nil},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

// TestImportDirection keeps each folder to what it may import.
func TestImportDirection(t *testing.T) {
	for _, p := range packages(t) {
		folder, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, module), "/")
		rule, ok := rules[folder]
		if !ok {
			if folder != "hack" {
				t.Errorf("%s: no rule for folder %s", p.ImportPath, folder)
			}
			continue
		}
		for _, i := range p.Imports {
			if inner, ours := strings.CutPrefix(i, module); ours {
				to, _, _ := strings.Cut(inner, "/")
				if to != folder && !contains(rule.may, to) {
					t.Errorf("%s imports %s: %s may import only %v of this module", p.ImportPath, i, folder, rule.may)
				}
				continue
			}
			if first, _, _ := strings.Cut(i, "/"); rule.only != nil && strings.Contains(first, ".") && !prefixed(rule.only, i) {
				t.Errorf("%s imports %s: %s may import only the standard library and %v", p.ImportPath, i, folder, rule.only)
			}
		}
	}
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func prefixed(list []string, s string) bool {
	for _, x := range list {
		if strings.HasPrefix(s, x) {
			return true
		}
	}
	return false
}
