// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package enginetest_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/engine/enginetest"
)

var (
	content = engine.NewSlot[string]("enginetest.content")
	written = engine.NewSlot[string]("enginetest.written")
)

// writer is the smallest action with all that an action can have: it makes a
// directory with two files, slowly.
type writer struct{ root string }

func (w writer) Needs() []engine.Key { return []engine.Key{content.Key()} }
func (w writer) Fills() engine.Key   { return written.Key() }

func (w writer) Do(ctx context.Context, r *engine.Run) error {
	text, err := content.Need(r)
	if err != nil {
		return err
	}
	dir := filepath.Join(w.root, r.ID())
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return written.Set(r, dir)
}

func (w writer) Undo(_ context.Context, r *engine.Run) error {
	return os.RemoveAll(filepath.Join(w.root, r.ID()))
}

func (w writer) Sweep(_ context.Context, s *engine.Sweep) error {
	entries, err := os.ReadDir(w.root)
	for _, entry := range entries {
		if !s.Known("pod", entry.Name()) {
			s.Remove("directory", entry.Name(), func() error { return os.RemoveAll(filepath.Join(w.root, entry.Name())) })
		}
	}
	return err
}

func TestSuite(t *testing.T) {
	root := t.TempDir()
	enginetest.Suite(t, enginetest.Subject{
		New:      func(*testing.T) engine.Action { return writer{root} },
		Workflow: "pod", Flow: "create",
		Values: func(*testing.T, string) []engine.Value { return []engine.Value{content.With("hello")} },
		World: func(t *testing.T, _ string) []string {
			t.Helper()
			var list []string
			err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
				list = append(list, path)
				return err
			})
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return list
		},
		Check: func(t *testing.T, r *engine.Run) {
			t.Helper()
			if dir, err := written.Need(r); err != nil || filepath.Base(dir) != r.ID() {
				t.Errorf("filled %q, %v", dir, err)
			}
		},
	})
}
