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
	directories := func() int {
		var found []string
		err := filepath.WalkDir(c.Root, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() && filepath.Base(filepath.Dir(path)) == "snapshots" {
				found = append(found, path)
				return filepath.SkipDir
			}
			return err
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return len(found)
	}
	before := directories()
	const many = 60
	for i := range many {
		if _, err := s.PrepareRootfs(t.Context(), fmt.Sprint("k", i), snapshot.RootfsOptions{Image: img.ID}); err != nil {
			t.Fatal(err)
		}
	}
	if got := directories(); got < many {
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
		if got := directories(); got > before {
			return snapshot.Image{}, errors.New("directories are left")
		}
		return snapshot.Image{}, nil
	})
}
