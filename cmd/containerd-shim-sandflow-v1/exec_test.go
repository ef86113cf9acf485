// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// What a process wrote before its end is read even where the reader comes so late that its
// deadline has passed.
func TestReadNowAfterTheDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	buf := make([]byte, 16)
	late := func() {
		t.Helper()
		if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the deadline should have passed: %v", err)
		}
	}
	late()
	if n, err := readNow(r, buf); n != 0 || !errors.Is(err, errSilent) {
		t.Fatalf("nothing was written: %d, %v", n, err)
	}
	if _, err := w.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	late()
	if n, err := readNow(r, buf); err != nil || string(buf[:n]) != "last words" {
		t.Fatalf("got %q, %v", buf[:n], err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	late()
	if _, err := readNow(r, buf); !errors.Is(err, io.EOF) {
		t.Fatalf("no end: %v", err)
	}
}

// slowWriter takes longer than a stream may be silent.
type slowWriter struct{ bytes.Buffer }

func (s *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(idleGrace + idleGrace/4)
	return s.Buffer.Write(p)
}

// A process that ended has left output that nobody took, and a process that holds its stream
// open: all of the output comes, then the copy ends.
func TestCopyUntilIdleOfASlowClient(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	// More than one read takes.
	want := bytes.Repeat([]byte("x"), 60000)
	if _, err := w.Write(want); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	close(exited)
	var got slowWriter
	if copyUntilIdle(r, &got, exited) {
		t.Error("the end of an open stream was reached")
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d came", got.Len(), len(want))
	}
}
