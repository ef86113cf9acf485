// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestPriorities looks at records as klog writes them.
func TestPriorities(t *testing.T) {
	var b bytes.Buffer
	l, err := New(prioritized{&b}, "info", Text)
	if err != nil {
		t.Fatal(err)
	}
	l.Info("Serving")
	l.Info("Old kernel", "warning", true)
	l.Error(errors.New("first line\nsecond line"), "Flow failed")
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) < 4 || !strings.HasPrefix(lines[0], "<6>I") || !strings.HasPrefix(lines[1], "<4>I") {
		t.Fatalf("the journal gets %q", lines)
	}
	for _, line := range lines[2:] {
		if !strings.HasPrefix(line, "<3>") {
			t.Errorf("a line of an error is %q", line)
		}
	}
	b.Reset()
	if l, err = New(prioritized{&b}, "info", JSON); err != nil {
		t.Fatal(err)
	}
	l.Info("Serving")
	if !strings.HasPrefix(b.String(), "{") {
		t.Errorf("a record in JSON is %q", b.String())
	}
}
