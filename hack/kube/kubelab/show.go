// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// show is a sequence of things that must be so, each told in a line.
type show struct {
	out    io.Writer
	count  int
	failed int
}

// step is one of them; the text it returns is put behind its name.
type step struct {
	name string
	run  func(ctx context.Context) (string, error)
}

// play runs steps until one fails, since the later ones build on it.
func (s *show) play(ctx context.Context, steps []step) {
	for _, st := range steps {
		if s.failed > 0 {
			return
		}
		s.one(ctx, st)
	}
}

func (s *show) one(ctx context.Context, st step) {
	begin := time.Now()
	text, err := st.run(ctx)
	word := "pass"
	if err != nil {
		word, text = "FAIL", ""
		s.failed++
	}
	s.count++
	if text != "" {
		text = ": " + text
	}
	fmt.Fprintf(s.out, "%s %7d ms  %s%s\n", word, time.Since(begin).Milliseconds(), st.name, text)
	if err != nil {
		fmt.Fprintln(s.out, "    "+strings.ReplaceAll(err.Error(), "\n", "\n    "))
	}
}

// end says how it went.
func (s *show) end() error {
	if s.failed > 0 {
		return fmt.Errorf("%d of %d failed", s.failed, s.count)
	}
	fmt.Fprintf(s.out, "all %d pass\n", s.count)
	return nil
}
