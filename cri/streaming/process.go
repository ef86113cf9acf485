// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// processOf is the container's own process with another command.
func processOf(bundle string, cmd []string, tty bool) (*specs.Process, error) {
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's specification: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("read the container's specification: %w", err)
	}
	p := spec.Process
	if p == nil {
		p = &specs.Process{Cwd: "/"}
	}
	p.Args, p.CommandLine, p.Terminal, p.ConsoleSize = cmd, "", tty, nil
	return p, nil
}
