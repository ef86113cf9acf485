// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandflow-cri/sandflow/steps"
)

// hasPrefix matches the id of a filter: empty matches all, a prefix is enough.
func hasPrefix(id, want string) bool { return strings.HasPrefix(id, want) }

// hasLabels matches a label selector: every pair must be there.
func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// logDirectory refuses what is set and cannot be a directory: a relative path, and one
// that is, or leads through, something else. One that is not there yet gets made.
func logDirectory(field, path string) error {
	if path == "" {
		return nil
	}
	if !filepath.IsAbs(path) {
		return invalid("%s %q is not an absolute path", field, path)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return invalid("%s: %v", field, err)
	case !info.IsDir():
		return invalid("%s %s is not a directory", field, path)
	}
	return nil
}

func protoOf[M proto.Message](m M) steps.Proto[M] { return steps.Proto[M]{M: m} }
