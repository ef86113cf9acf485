// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// makeCgroups makes a cgroup in every hierarchy, as kubelet wants its root to be.
func makeCgroups(path string) error {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("could not list cgroup hierarchies: %w", err)
	}
	for _, m := range all {
		dir := m.Mountpoint
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			if err := inherit(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// inherit gives a cgroup what it needs of its parent: in cgroup v1 the CPUs, which a new cpuset
// has none of, in cgroup2 the controllers.
func inherit(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		raw, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			continue // another hierarchy
		}
		if err := os.WriteFile(filepath.Join(dir, file), raw, 0); err != nil {
			return fmt.Errorf("could not hand CPUs down: %w", err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // cgroup v1
		return err
	}
	if len(strings.Fields(string(raw))) == 0 {
		return nil
	}
	all := "+" + strings.Join(strings.Fields(string(raw)), " +")
	if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(all), 0); err != nil {
		return fmt.Errorf("could not hand controllers down: %w", err)
	}
	return nil
}
