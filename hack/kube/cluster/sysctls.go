// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// tunables are the settings of the whole machine that kubelet changes at its start, and will
// not do without.
var tunables = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// sysctls are values as they were, by path.
type sysctls map[string][]byte

func rememberSysctls() (sysctls, error) {
	s := sysctls{}
	for _, name := range tunables {
		path := filepath.Join("/proc/sys", name)
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("could not read a sysctl: %w", err)
		}
		s[path] = raw
	}
	return s, nil
}

// KeepSysctls remembers those settings, for a kubelet outside of a cluster; restore gives the
// machine its own back.
func KeepSysctls() (restore func() error, err error) {
	s, err := rememberSysctls()
	return s.restore, err
}

// restore gives the machine back its settings.
func (s sysctls) restore() error {
	var errs []error
	for path, raw := range s {
		if err := os.WriteFile(path, raw, 0); err != nil {
			errs = append(errs, fmt.Errorf("could not restore a sysctl: %w", err))
		}
	}
	return errors.Join(errs...)
}
