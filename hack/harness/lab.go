// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package harness makes a laboratory for tests that need a whole node: private network,
// mount, IPC and PID namespaces with a tmpfs on /run, in which a daemon runs with
// directories and cgroups of its own. Two laboratories never meet, and when one closes
// nothing of it stays.
package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// What is set in the environment of a laboratory.
const (
	envDir    = "SANDFLOW_LAB"        // its directory
	envBuild  = "SANDFLOW_BUILD"      // the repository's build directory
	envCgroup = "SANDFLOW_LAB_CGROUP" // its cgroup path
	envDisk   = "SANDFLOW_LAB_DISK"   // where its directory is outside of it
	envPID    = "SANDFLOW_LAB_PID"    // the process ID outside of it of who opened it
)

// mountPoint is where a laboratory's directory is inside of it: short, since the path of a
// unix socket must be.
const mountPoint = "/run/lab"

// Lab is the laboratory that this process is in.
type Lab struct {
	// Dir is a directory on disk that goes with the laboratory.
	Dir string
	// Build is the repository's build directory: bin, cni, images.
	Build string
	// CgroupParent holds the cgroups of the laboratory's pods.
	CgroupParent string
}

// Here returns the laboratory that this process is in, if any.
func Here() (*Lab, bool) {
	dir := os.Getenv(envDir)
	if dir == "" {
		return nil, false
	}
	return &Lab{Dir: dir, Build: os.Getenv(envBuild), CgroupParent: os.Getenv(envCgroup)}, true
}

// Bin is the path of a program in the build directory.
func (l *Lab) Bin(name string) string { return filepath.Join(l.Build, "bin", name) }

// Images is the directory of the built images.
func (l *Lab) Images() string { return filepath.Join(l.Build, "images") }

// newLab makes the directory of a laboratory.
func newLab(build string) (*Lab, error) {
	build, err := filepath.Abs(build)
	if err != nil {
		return nil, err
	}
	l := &Lab{Build: build}
	parent := filepath.Join(build, "lab")
	if err := os.MkdirAll(parent, 0o711); err != nil {
		return nil, err
	}
	if l.Dir, err = os.MkdirTemp(parent, "sandflow-lab-"); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.Dir, 0o711); err != nil {
		return nil, err
	}
	l.CgroupParent = "/" + filepath.Base(l.Dir)
	return l, nil
}

// removeCgroups takes away what namespaces do not.
func (l *Lab) removeCgroups() error {
	return errors.Join(RemoveCgroups(l.CgroupParent), RemoveCgroups(l.CgroupParent+"-pods"))
}

// RemoveCgroups removes a cgroup and those below it from every hierarchy.
func RemoveCgroups(path string) error {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	errs := []error{err}
	for _, m := range all {
		errs = append(errs, removeCgroup(filepath.Join(m.Mountpoint, path)))
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup and those below it, deepest first.
func removeCgroup(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("could not remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// environ is this process's environment with the laboratory in it.
func (l *Lab) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if k, _, _ := strings.Cut(kv, "="); k != "PATH" && k != "TMPDIR" {
			env = append(env, kv)
		}
	}
	return append(env,
		envDir+"="+mountPoint,
		envDisk+"="+l.Dir,
		envPID+"="+strconv.Itoa(os.Getpid()),
		envBuild+"="+l.Build,
		envCgroup+"="+l.CgroupParent,
		"PATH="+filepath.Join(l.Build, "bin")+":"+os.Getenv("PATH"),
		"TMPDIR="+filepath.Join(mountPoint, "tmp"),
	)
}
