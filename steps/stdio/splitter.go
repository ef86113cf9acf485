// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stdio carries the output and input of containers: it writes CRI log
// files, lets clients attach, and frames streams over a unix socket.
package stdio

import "bytes"

// DefaultMaxLine is the length in bytes at which a log line is split when none is configured.
const DefaultMaxLine = 16 << 10

// Splitter cuts a byte stream into lines of at most max bytes. A longer line
// comes in several pieces, all but the last of them partial, so that the
// pieces joined, with a newline after each that is not partial, are the stream.
type Splitter struct {
	max     int
	pending []byte
}

// NewSplitter returns a splitter; max <= 0 means DefaultMaxLine.
func NewSplitter(limit int) *Splitter {
	if limit <= 0 {
		limit = DefaultMaxLine
	}
	return &Splitter{max: limit}
}

// Feed hands over the next bytes. emit must not keep line.
func (s *Splitter) Feed(p []byte, emit func(line []byte, partial bool)) {
	for len(p) > 0 {
		part, rest, whole := bytes.Cut(p, []byte{'\n'})
		p = rest
		for len(s.pending)+len(part) > s.max {
			n := s.max - len(s.pending)
			emit(s.join(part[:n]), true)
			part = part[n:]
		}
		if whole {
			emit(s.join(part), false)
		} else {
			s.pending = append(s.pending, part...)
		}
	}
}

// Flush emits what is left of an unterminated line.
func (s *Splitter) Flush(emit func(line []byte, partial bool)) {
	if len(s.pending) > 0 {
		emit(s.join(nil), true)
	}
}

// join gives pending and part as one line and forgets pending.
func (s *Splitter) join(part []byte) []byte {
	if len(s.pending) == 0 {
		return part
	}
	line := append(s.pending, part...)
	s.pending = line[:0]
	return line
}
