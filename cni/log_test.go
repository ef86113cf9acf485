// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// logLines collects what is logged and lets a test wait for a line. Each wait
// begins where the one before it ended.
type logLines struct {
	t    *testing.T
	mu   sync.Mutex
	text string
	more chan struct{}
}

func logTo(t *testing.T) (*logLines, context.Context) {
	t.Helper()
	l := &logLines{t: t, more: make(chan struct{}, 1)}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l)))
	return l, klog.NewContext(t.Context(), logger)
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.text += string(p)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *logLines) wait(part string) {
	l.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		_, rest, found := strings.Cut(l.text, part)
		if found {
			l.text = rest
		}
		text := l.text
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-l.more:
		case <-deadline:
			l.t.Fatalf("%q was never logged, but this:\n%s", part, text)
		}
	}
}
