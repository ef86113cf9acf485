// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// split feeds input in chunks and gives what was emitted, and the stream made of it again.
func split(t *testing.T, limit, chunk int, input []byte) (records []string, rebuilt []byte) {
	t.Helper()
	s := NewSplitter(limit)
	emit := func(line []byte, partial bool) {
		tag := "F"
		if partial {
			tag = "P"
		}
		if bytes.IndexByte(line, '\n') >= 0 || len(line) > max(limit, 1) && limit > 0 {
			t.Errorf("bad record of %d bytes", len(line))
		}
		records = append(records, tag+string(line))
		rebuilt = append(rebuilt, line...)
		if !partial {
			rebuilt = append(rebuilt, '\n')
		}
	}
	for c := range slices.Chunk(input, chunk) {
		s.Feed(c, emit)
	}
	s.Flush(emit)
	return records, rebuilt
}

func TestSplitter(t *testing.T) { // case 22
	for _, tt := range []struct {
		input string
		want  string
	}{
		{"", ""},
		{"\n", "F"},
		{"a\n\nb\n", "Fa F Fb"},
		{"abcd\n", "Fabcd"}, // exactly the limit: one record
		{"abcde\n", "Pabcd Fe"},
		{"abcdefgh\n", "Pabcd Fefgh"},
		{"abcdefghi\nx", "Pabcd Pefgh Fi Px"},
		{"abc", "Pabc"},
		{"abcd", "Pabcd"},
	} {
		for chunk := 1; chunk <= 10; chunk++ {
			got, rebuilt := split(t, 4, chunk, []byte(tt.input))
			if strings.Join(got, " ") != tt.want || string(rebuilt) != tt.input {
				t.Errorf("%q in chunks of %d: %q, want %q", tt.input, chunk, got, tt.want)
			}
		}
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add(4, 3, []byte("abcd\nefghi\n\n"))
	f.Add(1, 1, []byte("\n\n"))
	f.Add(0, 7, bytes.Repeat([]byte("x"), 3*DefaultMaxLine))
	f.Fuzz(func(t *testing.T, limit, chunk int, input []byte) {
		if limit < -1 || limit > 1<<16 || chunk < 1 || chunk > 1<<16 {
			t.Skip()
		}
		if _, rebuilt := split(t, limit, chunk, input); !bytes.Equal(rebuilt, input) {
			t.Errorf("limit %d, chunks of %d: %q became %q", limit, chunk, input, rebuilt)
		}
	})
}
