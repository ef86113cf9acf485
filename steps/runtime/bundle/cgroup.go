// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	mountpoint, root string
	controllers      []string // nil for version 2
	unified          bool
}

// hierarchies lists those of this mount namespace.
func hierarchies() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("list cgroup mounts: %w", err)
	}
	var hs []hierarchy
	for _, m := range mounts {
		hs = append(hs, hierarchy{
			mountpoint: m.Mountpoint, root: m.Root,
			controllers: strings.Split(m.VFSOptions, ","), unified: m.FSType == "cgroup2",
		})
	}
	return hs, nil
}

func (h hierarchy) has(controller string) bool {
	for _, c := range h.controllers {
		if c == controller {
			return true
		}
	}
	return false
}

// dir is where a cgroup path, as in /proc/<pid>/cgroup, lies below the mount.
func (h hierarchy) dir(path string) string {
	if h.root != "/" {
		path = strings.TrimPrefix(path, h.root)
	}
	return filepath.Join(h.mountpoint, path)
}

// MemoryCgroup gives the directory whose files count the OOM kills of pid's
// cgroup; empty if there is no memory controller.
func MemoryCgroup(pid int) (string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", fmt.Errorf("find memory cgroup of process %d: %w", pid, err)
	}
	defer func() { _ = f.Close() }()
	hs, err := hierarchies()
	if err != nil {
		return "", err
	}
	unified := ""
	for s := bufio.NewScanner(f); s.Scan(); {
		parts := strings.SplitN(s.Text(), ":", 3) // id:controllers:path
		if len(parts) != 3 {
			continue
		}
		for _, h := range hs {
			switch {
			case h.unified && parts[0] == "0":
				unified = h.dir(parts[2])
			case !h.unified && h.has("memory") && hasField(parts[1], "memory"):
				return h.dir(parts[2]), nil
			}
		}
	}
	if _, err := os.Stat(filepath.Join(unified, "memory.events")); unified == "" || err != nil {
		return "", nil // no memory controller there: nothing to count
	}
	return unified, nil
}

func hasField(list, want string) bool {
	for _, s := range strings.Split(list, ",") {
		if s == want {
			return true
		}
	}
	return false
}

// OOMKills counts the processes that the kernel killed for want of memory in
// the cgroup dir and, since version 1 does not add them up, in those below it.
func OOMKills(dir string) (int, error) {
	if dir == "" {
		return 0, nil
	}
	n, err := counter(filepath.Join(dir, "memory.events"), "oom_kill")
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return n, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			return nil
		}
		k, err := counter(filepath.Join(path, "memory.oom_control"), "oom_kill")
		n += k
		return err
	})
	return n, err
}

// counter reads "key value" from a flat keyed file; 0 if the key is not there.
func counter(path, key string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			return strconv.Atoi(f[1])
		}
	}
	return 0, nil
}

// RemoveCgroup kills what is left in the cgroup that config.json in the bundle
// names, and removes it in every hierarchy. Nothing there is success.
func RemoveCgroup(ctx context.Context, dir string) error {
	spec, err := ReadSpec(dir)
	if err != nil {
		return nil //nolint:nilerr // never written: then no cgroup was made either
	}
	if spec.Linux == nil || spec.Linux.CgroupsPath == "" {
		return nil
	}
	return RemoveCgroupPath(ctx, spec.Linux.CgroupsPath)
}

// RemoveCgroupPath is RemoveCgroup for a path as it stands in an OCI spec:
// absolute, or "slice:prefix:name" for systemd.
func RemoveCgroupPath(ctx context.Context, path string) error {
	form := path
	path = filepath.Clean(expandSystemd(form))
	if !filepath.IsAbs(path) || path == "/" {
		return nil
	}
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range hs {
		errs = append(errs, removeTree(filepath.Join(h.mountpoint, path)))
	}
	if form != path {
		endScope(ctx, path)
	}
	return errors.Join(errs...)
}

// expandSystemd turns "a-b.slice:prefix:name" into /a.slice/a-b.slice/prefix-name.scope.
func expandSystemd(path string) string {
	parts := strings.Split(path, ":")
	if len(parts) != 3 {
		return path
	}
	slice, full, prefix := strings.TrimSuffix(parts[0], ".slice"), "/", ""
	for _, p := range strings.Split(slice, "-") {
		if p == "" {
			continue
		}
		prefix += p
		full = filepath.Join(full, prefix+".slice")
		prefix += "-"
	}
	unit := parts[2]
	if parts[1] != "" {
		unit = parts[1] + "-" + unit
	}
	return filepath.Join(full, unit+".scope")
}

// removeTree removes a cgroup and those below it, deepest first, killing what runs in them.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := removeOne(dirs[i]); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

// removeOne retries, since the kernel lets a cgroup go only some time after its last process died.
func removeOne(dir string) error {
	var err error
	for range 100 {
		if err = unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		killProcs(dir)
		time.Sleep(10 * time.Millisecond)
	}
	return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
}

func killProcs(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
