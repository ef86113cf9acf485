// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	core "k8s.io/api/core/v1"
)

const cgroupMount = "/sys/fs/cgroup"

// unified tells whether the machine has cgroup v2 only.
func unified() bool {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return err == nil
}

// hierarchy is where the cgroups of a controller are mounted.
func hierarchy(controller string) string {
	if unified() {
		return cgroupMount
	}
	return filepath.Join(cgroupMount, controller)
}

// cgroupOf finds the cgroup of a container of the node, as a path below the node's root.
func (e *env) cgroupOf(c *core.ContainerStatus) (string, error) {
	_, id, ok := strings.Cut(c.ContainerID, "://")
	if !ok {
		return "", fmt.Errorf("container %s has no ID: %q", c.Name, c.ContainerID)
	}
	return e.findCgroup(func(name string) bool { return strings.Contains(name, id) })
}

// podCgroup finds the cgroup of a pod of the node; empty: there is none.
func (e *env) podCgroup(uid string) (string, error) {
	return e.findCgroup(func(name string) bool { return name == "pod"+uid })
}

func (e *env) findCgroup(match func(name string) bool) (string, error) {
	root := filepath.Join(hierarchy("memory"), e.node().CgroupRoot)
	found := ""
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		// Others come and go.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() && match(d.Name()) {
			found = strings.TrimPrefix(path, root)
			return filepath.SkipAll
		}
		return err
	})
	return found, err
}

// limitsOf are the limits of a cgroup of the node.
func (e *env) limitsOf(path string) (limits, error) {
	path = filepath.Join(e.node().CgroupRoot, path)
	return readLimits(func(controller, file string) (string, error) {
		raw, err := os.ReadFile(filepath.Join(hierarchy(controller), path, file))
		return string(raw), err
	})
}

// limits are what a cgroup bounds, -1: not bounded.
type limits struct {
	// memory is in bytes, quota in thousandths of a processor; shares are what the cgroup has:
	// 1024 a processor with cgroup v1, a weight with v2.
	memory, quota, shares int64
}

// inside is a script that prints the limits of its own container, for parsed.
const inside = `
	cd /sys/fs/cgroup
	if [ -e cgroup.controllers ]; then
		cat memory.max cpu.max cpu.weight
	else
		cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu/cpu.shares
	fi`

// parsed reads what the script inside printed.
func parsed(text string) (limits, error) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return limits{}, fmt.Errorf("four words of limits wanted: %q", text)
	}
	return fromWords(words)
}

// readLimits reads the same words from outside of a container.
func readLimits(read func(controller, file string) (string, error)) (limits, error) {
	files := [][2]string{
		{"memory", "memory.limit_in_bytes"}, {"cpu", "cpu.cfs_quota_us"}, {"cpu", "cpu.cfs_period_us"}, {"cpu", "cpu.shares"},
	}
	if unified() {
		files = [][2]string{{"memory", "memory.max"}, {"cpu", "cpu.max"}, {"cpu", "cpu.weight"}}
	}
	var text []string
	for _, f := range files {
		t, err := read(f[0], f[1])
		if err != nil {
			return limits{}, err
		}
		text = append(text, t)
	}
	return parsed(strings.Join(text, " "))
}

func fromWords(words []string) (limits, error) {
	var n [4]int64
	var errs []error
	for i, w := range words {
		if w == "max" {
			n[i] = -1
			continue
		}
		var err error
		n[i], err = strconv.ParseInt(w, 10, 64)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return limits{}, err
	}
	l := limits{memory: n[0], quota: -1, shares: n[3]}
	// cgroup v1 says "no limit" by a number near the largest.
	if l.memory > 1<<60 {
		l.memory = -1
	}
	if n[1] > 0 && n[2] > 0 {
		l.quota = n[1] * 1000 / n[2]
	}
	return l, nil
}
