// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// line appends one whole line.
func line(l *Log, s Stream, text string) {
	l.Append(s, func(emit func([]byte, bool)) { emit([]byte(text), false) })
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLogFormat(t *testing.T) { // cases 22 and 25
	path := filepath.Join(t.TempDir(), "not", "yet", "0.log")
	l, err := OpenLog("", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	line(l, Stdout, "a b")
	l.Append(Stderr, func(emit func([]byte, bool)) { emit([]byte("x"), true); emit(nil, false) })
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	line(l, Stdout, "too late")
	stamp := `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z`
	want := regexp.MustCompile("^" + stamp + " stdout F a b\n" + stamp + " stderr P x\n" + stamp + " stderr F \n$")
	if got := read(t, path); !want.MatchString(got) {
		t.Errorf("log %q", got)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestLogPaths(t *testing.T) { // case 25
	l, err := OpenLog("", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	line(l, Stdout, "drained")
	if err := l.Reopen(); err != nil {
		t.Error(err)
	}
	if _, err := OpenLog("", "relative.log", nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("relative path: %v", err)
	}
	if _, err := OpenLog("", t.TempDir(), nil); err == nil {
		t.Error("a directory passes for a log")
	}
}

func TestLogRotation(t *testing.T) { // case 23
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	l, err := OpenLog("", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	const lines, rotations = 60000, 60
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range lines {
			line(l, Stdout, fmt.Sprint(i))
		}
	})
	for i := range rotations {
		old := filepath.Join(dir, fmt.Sprintf("%02d.old", i))
		if err := os.Rename(path, old); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(old, old+".link"); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	var all strings.Builder
	for i := range rotations {
		all.WriteString(read(t, filepath.Join(dir, fmt.Sprintf("%02d.old", i))))
	}
	all.WriteString(read(t, path))
	n := 0
	for rec := range strings.Lines(all.String()) {
		if !strings.HasSuffix(rec, fmt.Sprintf(" stdout F %d\n", n)) {
			t.Fatalf("record %d is %q", n, rec)
		}
		n++
	}
	if n != lines {
		t.Errorf("%d lines of %d", n, lines)
	}
}

func TestReopenThatFailsKeepsTheOldFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path := filepath.Join(dir, "0.log")
	l, err := OpenLog("", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a directory was opened")
	}
	line(l, Stdout, "kept")
	if got := read(t, dir+".old"); !strings.HasSuffix(got, " kept\n") {
		t.Errorf("log %q", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reopen after close: %v", err)
	}
}

func TestFullDiskTearsNoRecord(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "0.log")
	told := 0
	l, err := OpenLog("", path, func(error) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		line(l, Stdout, strings.Repeat("x", 1000))
	}
	if told != 1 || l.Lost() == 0 {
		t.Errorf("told %d times of %d lost records", told, l.Lost())
	}
	records := strings.Count(read(t, path), "\n")
	if got := read(t, path); !strings.HasSuffix(got, "x\n") || uint64(records)+l.Lost() != 200 {
		t.Errorf("%d records and %d lost, of 200; the last is %q", records, l.Lost(), got[len(got)-10:])
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	line(l, Stdout, "again")
	if got := read(t, path); !strings.HasSuffix(got, " stdout F again\n") || strings.Contains(got, "\x00") {
		t.Errorf("after there is room again: %q", got)
	}
}
