// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
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

// absolute refuses a path that is set and not absolute.
func absolute(field, path string) error {
	if path != "" && !filepath.IsAbs(path) {
		return invalid("%s %q is not an absolute path", field, path)
	}
	return nil
}

func protoOf[M proto.Message](m M) steps.Proto[M] { return steps.Proto[M]{M: m} }
