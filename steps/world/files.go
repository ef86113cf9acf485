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
	"strings"

	"github.com/moby/sys/mountinfo"
)

// standing are the daemon's own directories that it makes when it first needs
// them, and keeps; what is in them is listed.
var standing = map[string]bool{
	"pods": true, "containers": true, "tmp": true, "volumes": true, "networks": true, "cni": true, "cni/results": true,
}

// files lists what lies in the daemon's directories: not what is mounted there,
// nor containerd's own, which come and go with pulls.
func files(_ context.Context, l *look) error {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	mounted := map[string]bool{}
	for _, m := range all {
		mounted[m.Mountpoint] = true
	}
	var errs []error
	for _, dir := range []string{l.State, l.Root} {
		if dir == "" {
			continue
		}
		errs = append(errs, walk(dir, func(path string, e fs.DirEntry) error {
			return l.file(dir, path, e, mounted[path])
		}))
	}
	for _, s := range l.Snapshotters {
		if l.ContainerdRoot == "" || !l.Node {
			break // they have numbers for names, so only a count tells
		}
		found, err := filepath.Glob(filepath.Join(l.ContainerdRoot, "io.containerd.snapshotter.v1."+s, "snapshots", "*"))
		errs = append(errs, err)
		for _, path := range found {
			l.add(SnapshotDirectories, path, "")
		}
	}
	return errors.Join(errs...)
}

func (l *look) file(dir, path string, e fs.DirEntry, mounted bool) error {
	rel := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
	switch {
	case rel == "", e.IsDir() && standing[rel]:
		return nil
	case path == l.ContainerdRoot, path == l.ContainerdState, e.IsDir() && strings.HasPrefix(e.Name(), "io.containerd."):
		return filepath.SkipDir
	}
	id := idIn(path)
	if id == "" && !l.Node && !stray(rel) {
		if e.IsDir() {
			return filepath.SkipDir // of a part of the daemon that this package knows nothing of
		}
		return nil
	}
	l.add(kindOf(path, rel, e), path, id)
	if e.IsDir() && (mounted || strings.HasPrefix(rel, "volumes/")) {
		return filepath.SkipDir // an image's files
	}
	return nil
}

// stray says that something without an ID lies where there must be none.
func stray(rel string) bool {
	for _, dir := range []string{"pods/", "containers/", "volumes/", "networks/", "cni/results/"} {
		if strings.HasPrefix(rel, dir) {
			return true
		}
	}
	return false
}

func kindOf(path, rel string, e fs.DirEntry) string {
	switch t := e.Type(); {
	case strings.HasPrefix(rel, "cni/results/"):
		return CacheEntries
	case t.IsDir() && filepath.Base(filepath.Dir(filepath.Dir(path))) == "runc":
		return RuntimeStates // runc/NAMESPACE/ID
	case t.IsDir():
		return Directories
	case t&fs.ModeSocket != 0:
		return Sockets
	case t&fs.ModeNamedPipe != 0:
		return FIFOs
	default:
		return Files
	}
}

// walk is filepath.WalkDir that does not mind what is missing or goes meanwhile.
func walk(dir string, f func(path string, e fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrInvalid) {
			return nil
		}
		if err != nil {
			return err
		}
		return f(path, e)
	})
}
