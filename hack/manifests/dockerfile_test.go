// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// built are the files that only a build makes.
const built = "build/bin/"

// TestDockerfiles parses the Dockerfiles with BuildKit's parser, and looks for what they copy.
func TestDockerfiles(t *testing.T) {
	files, err := filepath.Glob("../../deploy/*/Dockerfile")
	if err != nil || len(files) < 2 {
		t.Fatalf("Dockerfiles: %v, %v", files, err)
	}
	for _, file := range files {
		result, err := parser.Parse(bytes.NewReader(read(t, file)))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, w := range result.Warnings {
			t.Errorf("%s: %s", file, w.Short)
		}
		stages, args, err := instructions.Parse(result.AST, nil)
		if err != nil || len(stages) != 1 || len(args) != 1 {
			t.Errorf("%s has %d stages after %d arguments, %v", file, len(stages), len(args), err)
			continue
		}
		copied := map[string]bool{}
		for _, command := range stages[0].Commands {
			if c, ok := command.(*instructions.CopyCommand); ok {
				checkCopy(t, file, c)
				for _, s := range c.SourcePaths {
					copied[filepath.Base(s)] = true
				}
			}
		}
		for _, program := range []string{"sandflowd", "sandflow", "containerd-shim-sandflow-v1", "sandflowd.service"} {
			if !copied[program] {
				t.Errorf("%s does not copy %s", file, program)
			}
		}
	}
}

func checkCopy(t *testing.T, file string, c *instructions.CopyCommand) {
	t.Helper()
	for _, source := range c.SourcePaths {
		st, err := os.Stat(filepath.Join("../..", source))
		if err != nil {
			if strings.HasPrefix(source, built) && os.IsNotExist(err) {
				continue
			}
			t.Errorf("%s: %v", file, err)
			continue
		}
		isProgram := st.Mode().Type() == fs.FileMode(0) && st.Mode()&0o100 != 0
		if want := map[bool]string{true: "0755", false: "0644"}[isProgram]; c.Chmod != want {
			t.Errorf("%s copies %s with mode %s, want %s", file, source, c.Chmod, want)
		}
	}
	if len(c.SourcePaths) > 1 && !strings.HasSuffix(c.DestPath, "/") {
		t.Errorf("%s copies %v to %s", file, c.SourcePaths, c.DestPath)
	}
}
