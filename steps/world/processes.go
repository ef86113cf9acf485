// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// initName is what the init of a pod with a shared PID namespace is called.
const initName = "sandflow-init"

// cgroups are those below the parents of pods, in every hierarchy.
func cgroups(_ context.Context, l *look) error {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var errs []error
	for _, parent := range l.parents() {
		for _, m := range all {
			top := filepath.Join(m.Mountpoint, parent)
			errs = append(errs, walk(top, func(path string, e fs.DirEntry) error {
				if !e.IsDir() || path == top {
					return nil
				}
				// What is below another's parent is not all ours, but what bears an ID is.
				if id := idIn(path); id != "" || parent == expandSlice(l.CgroupParent) {
					l.add(Cgroups, path, id)
				}
				return nil
			}))
		}
	}
	return errors.Join(errs...)
}

// parents are the cgroups that pods are in, as paths below a hierarchy.
func (l *look) parents() []string {
	var out []string
	if l.CgroupParent != "" {
		out = append(out, expandSlice(l.CgroupParent))
	}
	for _, r := range l.records {
		if r.Parent != "" {
			out = append(out, expandSlice(r.Parent))
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	// One below another is walked with it.
	return slices.DeleteFunc(out, func(p string) bool {
		return slices.ContainsFunc(out, func(q string) bool { return p != q && below(p, q) })
	})
}

// expandSlice gives the path of a systemd slice: a-b.slice lies in a.slice.
func expandSlice(parent string) string {
	name, ok := strings.CutSuffix(filepath.Base(parent), ".slice")
	if !ok {
		return parent
	}
	path := "/"
	parts := strings.Split(name, "-")
	for i := range parts {
		path = filepath.Join(path, strings.Join(parts[:i+1], "-")+".slice")
	}
	return path
}

// processes are shims, the inits of pods, and what is in the cgroups of containers.
func processes(_ context.Context, l *look) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	parents := l.parents()
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			l.process(e.Name(), parents)
		}
	}
	return nil
}

func (l *look) process(pid string, parents []string) {
	read := func(file string) string {
		raw, _ := os.ReadFile(filepath.Join("/proc", pid, file)) // gone meanwhile: nothing in it
		return string(raw)
	}
	comm := strings.TrimSpace(read("comm"))
	if comm == "" {
		return
	}
	args := strings.Split(read("cmdline"), "\x00")
	name := fmt.Sprintf("%s (pid %s)", comm, pid)
	if l.Node {
		name = comm
	}
	switch {
	case l.Shim != "" && args[0] == l.Shim && len(args) > 1 && args[1] != "init":
		if i := slices.Index(args, "-id"); i >= 0 && i+1 < len(args) {
			l.add(Shims, name, args[i+1])
			return
		}
	case l.Shim != "" && args[0] == initName:
		l.add(Inits, name, idIn(read("cgroup")))
		return
	}
	id := idOfCgroup(read("cgroup"), parents)
	if l.Node || id != "" {
		l.add(Processes, name, id)
	}
}

// idOfCgroup finds the container in the lines of /proc/PID/cgroup.
func idOfCgroup(text string, parents []string) string {
	for line := range strings.Lines(text) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), ":/")
		for _, parent := range parents {
			// A process in another cgroup namespace may see more above.
			if strings.Contains("/"+path, parent+"/") {
				if id := idIn(path); id != "" {
					return id
				}
			}
		}
	}
	return ""
}
