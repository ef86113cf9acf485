// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

const forceTimeout = 20 * time.Second

// ociState is a container in an OCI runtime's state directory.
type ociState struct {
	binary, root, id string
	bundle           string
}

// forceDelete removes a container without a shim: its processes, its cgroup
// and its state. It tells whether there was anything of it.
func forceDelete(ctx context.Context, s ociState) (bool, error) {
	dir := filepath.Join(s.root, s.id)
	_, err := os.Lstat(dir)
	there := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	var deleted error
	if there {
		ctx, cancel := context.WithTimeout(ctx, forceTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, s.binary, "--root", s.root, "delete", "--force", s.id) //nolint:gosec // configured by the operator
		cmd.WaitDelay = time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			deleted = fmt.Errorf("%s delete --force %s: %w: %s", s.binary, s.id, err, strings.TrimSpace(string(out)))
		}
	}
	// A runtime that was killed while it made the container may have left a cgroup that
	// it does not know of, or a state that it cannot read.
	if err := bundle.RemoveCgroup(ctx, s.bundle); err != nil {
		return there, errors.Join(deleted, err)
	}
	if ctx.Err() != nil {
		return there, errors.Join(deleted, ctx.Err())
	}
	return there, os.RemoveAll(dir)
}
