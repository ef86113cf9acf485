// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/coreos/go-systemd/v22/journal"
)

// Stderr is where records go: standard error, and if that is systemd's journal, with the
// priority of each record in front (sd-daemon(3)), for "journalctl -p".
func Stderr() io.Writer {
	if ok, err := journal.StderrIsJournalStream(); err != nil || !ok {
		return os.Stderr
	}
	return prioritized{os.Stderr}
}

// prioritized puts a priority before each line of a text record.
type prioritized struct{ w io.Writer }

// Write takes a whole record, as loggers write it.
func (p prioritized) Write(record []byte) (int, error) {
	priority := journal.PriInfo
	switch {
	case len(record) == 0 || record[0] == '{': // JSON says it itself
		return p.w.Write(record)
	case record[0] == 'E' || record[0] == 'F':
		priority = journal.PriErr
	case warned(record):
		priority = journal.PriWarning
	}
	var b bytes.Buffer
	for line := range bytes.Lines(record) {
		fmt.Fprintf(&b, "<%d>%s", priority, line)
	}
	if _, err := p.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(record), nil
}

// warned tells whether a record is one of Warn, or says so itself.
func warned(record []byte) bool {
	line, _, _ := bytes.Cut(record, []byte("\n"))
	return bytes.Contains(line, []byte(" "+warningKey+"=")) || bytes.Contains(line, []byte(`] "Warning: `))
}
