// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// endStrays ends the plugins that are in an ADD for a pod of ours, which a daemon that has died
// has left. One that is being killed may still start another, so they are looked for until none
// is found.
func endStrays(pods string) error {
	for {
		found, err := endStraysOnce(pods)
		if err != nil {
			return fmt.Errorf("end the network plugins of an earlier daemon: %w", err)
		}
		if !found {
			return nil
		}
	}
}

func endStraysOnce(pods string) (found bool, err error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	var errs []error
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		errs = append(errs, bundle.KillIf(pid, func() bool {
			adding := cni.Adding(pid, pods)
			found = found || adding
			return adding
		}))
	}
	return found, errors.Join(errs...)
}
