// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logging sets up klog's contextual logging, as text or JSON lines.
package logging

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// Forms of output.
const (
	Text = "text"
	JSON = "json"
)

// Levels, and the highest V() of informational messages that each lets through.
// Warnings are informational messages at V(0) that carry the key "warning".
var levels = map[string]int{"error": errorsOnly, "warn": warningsOnly, "info": 2, "debug": 5, "trace": 10}

const (
	warningsOnly = -1
	errorsOnly   = -2
)

// warningKey marks an informational message as a warning: logr has no level for it.
const warningKey = "warning"

// New returns a logger that writes to w.
func New(w io.Writer, level, format string) (klog.Logger, error) {
	verbosity, ok := levels[level]
	if !ok {
		return klog.Logger{}, fmt.Errorf("no log level %q: want error, warn, info, debug or trace", level)
	}
	var base logr.Logger
	switch format {
	case Text:
		base = textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(max(0, verbosity)), textlogger.Output(w)))
	case JSON:
		base = logr.FromSlogHandler(slog.NewJSONHandler(w, &slog.HandlerOptions{
			Level: slog.Level(-max(0, verbosity)), ReplaceAttr: jsonAttr,
		}))
	default:
		return klog.Logger{}, fmt.Errorf("no log format %q: want text or json", format)
	}
	// The gate is one more frame between the caller and the sink.
	return logr.New(&gate{LogSink: base.WithCallDepth(1).GetSink(), verbosity: verbosity}), nil
}

// Install makes l the logger of all that use klog, contextually or not.
func Install(l klog.Logger, level string) error {
	// klog.V() looks at klog's own flag, not at the logger.
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(max(0, levels[level]))); err != nil {
		return fmt.Errorf("set the log level: %w", err)
	}
	klog.SetLoggerWithOptions(l, klog.ContextualLogger(true))
	return nil
}

// gate lets through what the level wants. It exists because klog's own
// verbosity cannot go below "every info message".
type gate struct {
	logr.LogSink
	verbosity int
}

// Init does nothing: the sink inside has been told.
func (*gate) Init(logr.RuntimeInfo) {}

func (g *gate) Enabled(level int) bool {
	return level <= max(0, g.verbosity) && (g.verbosity > errorsOnly) && g.LogSink.Enabled(level)
}

func (g *gate) Info(level int, msg string, kv ...any) {
	if g.verbosity == warningsOnly && !warns(kv) {
		return
	}
	g.LogSink.Info(level, msg, kv...)
}

// Error is as many frames deep as Info.
func (g *gate) Error(err error, msg string, kv ...any) { g.LogSink.Error(err, msg, kv...) }

func warns(kv []any) bool {
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i] == warningKey {
			return true
		}
	}
	return false
}

func (g *gate) WithValues(kv ...any) logr.LogSink {
	return &gate{LogSink: g.LogSink.WithValues(kv...), verbosity: g.verbosity}
}

func (g *gate) WithName(name string) logr.LogSink {
	return &gate{LogSink: g.LogSink.WithName(name), verbosity: g.verbosity}
}

func (g *gate) WithCallDepth(depth int) logr.LogSink {
	if s, ok := g.LogSink.(logr.CallDepthLogSink); ok {
		return &gate{LogSink: s.WithCallDepth(depth), verbosity: g.verbosity}
	}
	return g
}

// jsonAttr gives JSON lines the keys that Kubernetes' components use.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		a.Key = "ts"
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			return slog.String(a.Key, levelName(level))
		}
	}
	return a
}

// levelName turns slog's level, which is the negated V(), into a name.
func levelName(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "error"
	case int(-level) <= levels["info"]:
		return "info"
	default:
		return "debug"
	}
}

// Warn logs a message that deserves eyes and is no failure of what was asked.
func Warn(l klog.Logger, msg string, kv ...any) {
	l.WithCallDepth(1).Info(msg, append([]any{warningKey, true}, kv...)...)
}
