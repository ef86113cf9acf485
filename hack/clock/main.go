// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command clock writes a build overlay for programs whose wall clock a test can set: their
// time.Now is off by as much as a file says, and what it gives still carries the true
// monotonic reading, as after settimeofday(2). A namespace cannot do that to CLOCK_REALTIME,
// and libfaketime not to a program in Go, which does not ask libc.
//
//	clock DIRECTORY FILE
//	go build -overlay DIRECTORY/overlay.json …
//
// FILE holds the seconds, which may be negative; it is looked at every few milliseconds.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"
)

// now is the line of time.Now that reads the clocks.
const now = "	sec, nsec, mono := runtimeNow()\n"

const shift = `package time

import "sync/atomic"

var shift atomic.Int64

// shifted is how far the wall clock is off, in seconds. Timers ask for the time where
// nothing may be called, so the file is read elsewhere.
func shifted() int64 { return shift.Load() }

func init() {
	go func() {
		for {
			shift.Store(readShift(shift.Load()))
			Sleep(5 * Millisecond)
		}
	}()
}

func readShift(was int64) int64 {
	fd, err := open(%q)
	if err != nil {
		return was // also when there are no descriptors left
	}
	defer closefd(fd)
	var text [20]byte
	n, err := read(fd, text[:])
	if err != nil {
		return was
	}
	seconds, negative := int64(0), false
	for _, c := range text[:n] {
		switch {
		case c == '-':
			negative = true
		case c >= '0' && c <= '9':
			seconds = seconds*10 + int64(c-'0')
		}
	}
	if negative {
		return -seconds
	}
	return seconds
}
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: clock DIRECTORY FILE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		os.Exit(1)
	}
}

func run(dir, file string) error {
	pkg, err := build.Default.Import("time", "", build.FindOnly)
	if err != nil {
		return fmt.Errorf("find the source of package time: %w", err)
	}
	source := filepath.Join(pkg.Dir, "time.go")
	raw, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if strings.Count(string(raw), now) != 1 {
		return errors.New("time.Now is not what it was when this was written")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	patched, added := filepath.Join(dir, "time.go"), filepath.Join(dir, "shift.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		source: patched, filepath.Join(pkg.Dir, "shift.go"): added,
	}})
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(patched, []byte(strings.Replace(string(raw), now, now+"\tsec += shifted()\n", 1)), 0o644),
		os.WriteFile(added, fmt.Appendf(nil, shift, file), 0o644),
		os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644),
	)
}
