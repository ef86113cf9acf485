// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ExecProcess is the process that runs cmd in the container of bundle: as the
// user, with the environment, the working directory and the confinement of the
// container's own process. The seccomp profile is the OCI runtime's to apply.
func ExecProcess(bundle string, cmd []string, tty bool) (*specs.Process, error) {
	if len(cmd) == 0 {
		return nil, invalid("cmd", "it is empty")
	}
	for _, arg := range cmd {
		if strings.ContainsRune(arg, 0) {
			return nil, invalid("cmd", "%q has a zero byte", arg)
		}
	}
	s, err := readSpec(bundle)
	if err != nil {
		return nil, err
	}
	p := s.Process
	p.Args, p.Terminal, p.ConsoleSize = slices.Clone(cmd), tty, nil
	if tty && !slices.ContainsFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "TERM=") }) {
		p.Env = append(p.Env, terminal)
	}
	return p, nil
}

func readSpec(bundle string) (*specs.Spec, error) {
	text, err := os.ReadFile(filepath.Join(bundle, configFile))
	if err != nil {
		return nil, fmt.Errorf("read the OCI spec: %w", err)
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("read the OCI spec %s: %w", filepath.Join(bundle, configFile), err)
	}
	if s.Process == nil {
		return nil, fmt.Errorf("the OCI spec in %s has no process: %w", bundle, errdefs.ErrFailedPrecondition)
	}
	return s, nil
}
