// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Stream names an output stream as it is written in the log.
type Stream string

// The two output streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

const (
	// timeFormat is RFC 3339 with all nine digits, so that records sort as text.
	timeFormat = "2006-01-02T15:04:05.000000000Z07:00"
	// writeSize is how much is gathered before it is written.
	writeSize = 64 << 10
)

// Log is a log file in the CRI format: "<time> <stream> <P|F> <content>\n" per
// record. It never holds up the one who writes because of a failing disk: what
// cannot be written is dropped whole records at a time, and counted.
type Log struct {
	dir, path string

	mu      sync.Mutex
	file    *os.File // nil once closed, or if there is no path
	failing bool
	lost    uint64
	onError func(error)
}

var recordBuffers = sync.Pool{New: func() any { b := make([]byte, 0, writeSize+DefaultMaxLine+64); return &b }}

// OpenLog opens or makes the file and the directories above it; below dir no link
// is followed (see openLogFile). An empty path gives a log that drops everything.
// onError, if not nil, is told of the first failing write of a row of them.
func OpenLog(dir, path string, onError func(error)) (*Log, error) {
	l := &Log{dir: dir, path: path, onError: onError}
	if path == "" {
		return l, nil
	}
	f, err := openLogFile(dir, path)
	if err != nil {
		return nil, err
	}
	l.file = f
	return l, nil
}

// Append writes the records that fill emits, all with the present time, in one
// piece as far as other streams are concerned.
func (l *Log) Append(stream Stream, fill func(emit func(line []byte, partial bool))) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		fill(func([]byte, bool) {})
		return
	}
	pooled, _ := recordBuffers.Get().(*[]byte)
	buf := (*pooled)[:0]
	var records uint64
	now := time.Now().UTC()
	fill(func(line []byte, partial bool) {
		tag := " F "
		if partial {
			tag = " P "
		}
		buf = now.AppendFormat(buf, timeFormat)
		buf = append(append(buf, ' '), stream...)
		buf = append(append(append(buf, tag...), line...), '\n')
		records++
		if len(buf) >= writeSize {
			l.write(buf, records)
			buf, records = buf[:0], 0
		}
	})
	l.write(buf, records)
	*pooled = buf[:0]
	if cap(buf) <= 4*writeSize {
		recordBuffers.Put(pooled)
	}
}

// write puts whole records at the end of the file. A torn one is cut off again.
func (l *Log) write(b []byte, records uint64) {
	if len(b) == 0 {
		return
	}
	n, err := l.file.Write(b)
	if err == nil {
		l.failing = false
		return
	}
	l.lost += records
	if n > 0 {
		err = errors.Join(err, l.cut(int64(n)))
	}
	if !l.failing && l.onError != nil {
		l.onError(fmt.Errorf("write container log %s: %w", l.path, err))
	}
	l.failing = true
}

// cut takes the last n bytes off the file.
func (l *Log) cut(n int64) error {
	st, err := l.file.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	return l.file.Truncate(st.Size() - n)
}

// Lost is the number of records that could not be written.
func (l *Log) Lost() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Reopen opens the path anew, after the file was renamed. Every record is
// either in the old file or in the new one. If the new one cannot be opened the
// old one stays in use.
func (l *Log) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return nil
	}
	if l.file == nil {
		return fmt.Errorf("reopen container log %s: it is closed: %w", l.path, errdefs.ErrFailedPrecondition)
	}
	f, err := openLogFile(l.dir, l.path)
	if err != nil {
		return err
	}
	old := l.file
	l.file = f
	return old.Close()
}

// Close ends the log; what is appended later is dropped.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	f := l.file
	l.file = nil
	return f.Close()
}
