// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
)

// Error is one fault of the configuration.
type Error struct {
	File  string   // empty: the built-in default, or a flag
	Line  int      // 0 if the key is not written in the file
	Path  string   // such as workflows.sandbox.create.steps[1][0]
	Msg   string   // what is wrong
	Known []string // what could stand there instead
}

// Error is "file:line: key: what is wrong (known: …)".
func (e *Error) Error() string {
	var b strings.Builder
	switch {
	case e.File == "":
		b.WriteString("built-in configuration: ")
	case e.Line > 0:
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	default:
		b.WriteString(e.File + ": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Msg)
	if len(e.Known) > 0 {
		fmt.Fprintf(&b, " (known: %s)", strings.Join(e.Known, ", "))
	}
	return b.String()
}

// Fault makes the error for a key, with the file and line where it was written.
func (c *Config) Fault(path, msg string, known ...string) *Error {
	return &Error{File: c.origin.file, Line: c.origin.line(path), Path: path, Msg: msg, Known: known}
}
