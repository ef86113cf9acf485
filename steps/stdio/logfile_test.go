// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// TestLogPathOfOthers puts everything that is no file in the place of a log, or of a
// directory below the pod's: none is followed, opened or changed.
func TestLogPathOfOthers(t *testing.T) {
	host := t.TempDir()
	victim := filepath.Join(host, "victim")
	mustDo(t, os.WriteFile(victim, []byte("mine"), 0o600))
	at := func(dir, name string) string { return filepath.Join(dir, name) }
	for name, k := range map[string]struct {
		put  func(dir string) error
		says string
	}{
		"link to a file":      {func(d string) error { return os.Symlink(victim, at(d, "c/0.log")) }, "symbolic link"},
		"link to nothing":     {func(d string) error { return os.Symlink(at(host, "new"), at(d, "c/0.log")) }, "symbolic link"},
		"link to a neighbour": {func(d string) error { return os.Symlink("1.log", at(d, "c/0.log")) }, "symbolic link"},
		"FIFO":                {func(d string) error { return unix.Mkfifo(at(d, "c/0.log"), 0o600) }, "FIFO"},
		"device":              {func(d string) error { return unix.Mknod(at(d, "c/0.log"), unix.S_IFCHR|0o600, 1<<8|5) }, "device"},
		"directory":           {func(d string) error { return os.Mkdir(at(d, "c/0.log"), 0o755) }, "directory"},
		"socket": {func(d string) error {
			// A short name: that of the test's directory is too long for one.
			short, err := os.MkdirTemp("", "s")
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(short) }()
			l, err := net.Listen("unix", at(short, "s"))
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
			return os.Rename(at(short, "s"), at(d, "c/0.log"))
		}, "socket"},
		"link for a directory": {func(d string) error { return errors.Join(os.Remove(at(d, "c")), os.Symlink(host, at(d, "c"))) }, "c is a link"},
		"file for a directory": {func(d string) error { return errors.Join(os.Remove(at(d, "c")), os.WriteFile(at(d, "c"), nil, 0o600)) }, "no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustDo(t, os.Mkdir(at(dir, "c"), 0o755))
			if err := k.put(dir); errors.Is(err, unix.EPERM) && name == "device" {
				t.Skip("no devices can be made here")
			} else if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := OpenLog(dir, at(dir, "c/0.log"), nil)
				done <- err
			}()
			select {
			case err := <-done:
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), k.says) {
					t.Errorf("got %v, want it to say %q", err, k.says)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it hangs")
			}
			if left, err := os.ReadDir(host); err != nil || len(left) != 1 || read(t, victim) != "mine" {
				t.Errorf("outside there is %v, %v", left, err)
			}
		})
	}
}

// TestLogBelowLinks opens a log whose pod's directory is reached by a link of the node.
func TestLogBelowLinks(t *testing.T) {
	there, node := t.TempDir(), t.TempDir()
	link := filepath.Join(node, "log")
	mustDo(t, os.Symlink(there, link))
	dir := filepath.Join(link, "pods", "p")
	l, err := OpenLog(dir, filepath.Join(dir, "c", "deep", "0.log"), nil)
	if err != nil {
		t.Fatal(err)
	}
	line(l, Stdout, "there")
	mustDo(t, l.Close())
	if got := read(t, filepath.Join(there, "pods", "p", "c", "deep", "0.log")); !strings.HasSuffix(got, " there\n") {
		t.Errorf("log %q", got)
	}
	for _, path := range []string{dir, filepath.Join(dir, "..", "q", "0.log"), filepath.Dir(dir)} {
		if _, err := OpenLog(dir, path, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestReopenIntoLink rotates a log and puts a link in its place: the old file stays in use.
func TestReopenIntoLink(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "0.log"), filepath.Join(dir, "victim")
	l, err := OpenLog(dir, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, os.Rename(path, path+".1"))
	mustDo(t, os.WriteFile(victim, nil, 0o600))
	mustDo(t, os.Symlink(victim, path))
	if err := l.Reopen(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reopened: %v", err)
	}
	line(l, Stdout, "goes on")
	mustDo(t, os.Remove(path))
	mustDo(t, l.Reopen())
	line(l, Stdout, "anew")
	mustDo(t, l.Close())
	if old, now := read(t, path+".1"), read(t, path); !strings.HasSuffix(old, "goes on\n") || !strings.HasSuffix(now, "anew\n") || read(t, victim) != "" {
		t.Errorf("old %q, new %q, victim %q", old, now, read(t, victim))
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
