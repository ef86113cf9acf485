// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Case 93: directories are made inside, whatever links the image has.
func TestMkdirAllStaysInside(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	for link, target := range map[string]string{"abs": outside, "up": "../../../../../../.." + outside, "loop": "loop", "fine": "/real"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"/abs/made", "/up/made", "/loop/made", "/fine/made", "/../made", "/plain/a/b"} {
		t.Logf("%s: %v", dir, MkdirAll(root, dir, 0o755))
	}
	if found, err := os.ReadDir(outside); err != nil || len(found) != 0 {
		t.Errorf("made outside: %v, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(root, "plain/a/b")); err != nil {
		t.Error(err)
	}
}

func TestMkdirAllOnAFile(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(root, "/file", 0o755); !errors.Is(err, unix.ENOTDIR) {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "file"), make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(root, "/file", 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(root, "/file", 9); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err := Open(root, "/none", 9); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
