// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ReadBundle gives the OCI spec of a bundle.
func ReadBundle(bundle string) (*specs.Spec, error) { return readSpec(bundle) }

// PodOf gives the ID of the pod whose container a bundle is; empty if it does not tell.
func PodOf(bundle string) string {
	s, err := readSpec(bundle)
	if err != nil {
		return ""
	}
	return s.Annotations[annotationSandboxID]
}

// WriteBundle puts another OCI spec into a bundle, whole or not at all. A limit
// of swap is left out on a node that cannot enforce one, as in Resources.
func WriteBundle(bundle string, s *specs.Spec) error {
	if s.Linux != nil && s.Linux.Resources != nil && s.Linux.Resources.Memory != nil && !detect().swap() {
		s.Linux.Resources.Memory.Swap = nil
	}
	parentsFirst(s.Mounts)
	if err := writeSpec(bundle, &build{spec: s}); err != nil {
		return fmt.Errorf("write the OCI spec: %w", err)
	}
	return nil
}
