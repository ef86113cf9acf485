// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 84: the directories of removed snapshots go though nothing happens afterwards, also of
// those that were removed while others were collected.
func TestCase84RemovedSnapshotsGo(t *testing.T) {
	c := snapshottest.Config(snapshottest.Dir(t))
	s := snapshottest.Open(t, c)
	img := pull(t, s, snapshottest.Serve(t, nil).Push(t, "a:t", tiny(t, "one")))
	before := len(directories(t, c.Root))
	const many = 60
	for i := range many {
		if _, err := s.PrepareRootfs(t.Context(), fmt.Sprint("k", i), snapshot.RootfsOptions{Image: img.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(directories(t, c.Root)); got < many {
		t.Fatalf("%d directories, want at least %d", got, many)
	}
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			if err := s.RemoveRootfs(t.Context(), fmt.Sprint("k", i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	eventually(t, func() (snapshot.Image, error) {
		if got := len(directories(t, c.Root)); got > before {
			return snapshot.Image{}, errors.New("directories are left")
		}
		return snapshot.Image{}, nil
	})
}

// What a crash kept from being removed goes after the next start, though nothing else happens, also if
// containerd's first collection is in the middle of its work then.
func TestLeftDirectoriesGo(t *testing.T) {
	c := snapshottest.Config(snapshottest.Dir(t))
	s := snapshottest.Open(t, c)
	img := pull(t, s, snapshottest.Serve(t, nil).Push(t, "a:t", tiny(t, "one")))
	if _, err := s.PrepareRootfs(t.Context(), "k", snapshot.RootfsOptions{Image: img.ID}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		left := filepath.Join(filepath.Dir(directories(t, c.Root)[0]), "4711")
		if err := os.Mkdir(left, 0o700); err != nil {
			t.Fatal(err)
		}
		s = snapshottest.Open(t, c)
		eventually(t, func() (snapshot.Image, error) {
			if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
				return snapshot.Image{}, fmt.Errorf("it is left: %w", err)
			}
			return snapshot.Image{}, nil
		})
	}
}

// directories are those of snapshots.
func directories(t *testing.T, root string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() && filepath.Base(filepath.Dir(path)) == "snapshots" {
			found = append(found, path)
			return filepath.SkipDir
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return found
}
