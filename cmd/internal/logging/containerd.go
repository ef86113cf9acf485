// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"io"
	"maps"
	"slices"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"
)

// bridgeContainerd leads containerd's log, which is logrus behind a thin
// package, into l: as a hook, since it has no notion of a sink.
func bridgeContainerd(l klog.Logger) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard)
	logger.SetFormatter(noFormat{})
	logger.ReplaceHooks(logrus.LevelHooks{})
	logger.AddHook(hook{l.WithName("containerd")})
	logger.SetLevel(levelFor(l))
}

// levelFor saves logrus the making of entries that nobody will see.
func levelFor(l klog.Logger) logrus.Level {
	switch {
	case l.V(verbosityTrace).Enabled():
		return logrus.TraceLevel
	case l.V(verbosityDebug).Enabled():
		return logrus.DebugLevel
	case l.V(verbosityInfo).Enabled():
		return logrus.InfoLevel
	case l.Enabled():
		return logrus.WarnLevel
	default:
		return logrus.ErrorLevel
	}
}

// containerd is talkative: its info is a detail of ours.
const (
	verbosityInfo  = 3
	verbosityDebug = 5
	verbosityTrace = 8
)

type hook struct{ l klog.Logger }

func (hook) Levels() []logrus.Level { return logrus.AllLevels }

func (h hook) Fire(e *logrus.Entry) error {
	var cause error
	kv := make([]any, 0, 2*len(e.Data))
	for _, key := range slices.Sorted(maps.Keys(e.Data)) {
		if err, ok := e.Data[key].(error); ok && key == logrus.ErrorKey {
			cause = err
			continue
		}
		kv = append(kv, key, e.Data[key])
	}
	switch e.Level {
	case logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel:
		h.l.Error(cause, e.Message, kv...)
		return nil
	case logrus.WarnLevel:
		kv = append([]any{warningKey, true}, kv...)
	default:
	}
	if cause != nil {
		kv = append(kv, "err", cause)
	}
	h.l.V(verbosityOf(e.Level)).Info(e.Message, kv...)
	return nil
}

func verbosityOf(level logrus.Level) int {
	switch level {
	case logrus.InfoLevel:
		return verbosityInfo
	case logrus.DebugLevel:
		return verbosityDebug
	case logrus.TraceLevel:
		return verbosityTrace
	default:
		return 0
	}
}

// noFormat spares the formatting of what is thrown away.
type noFormat struct{}

func (noFormat) Format(*logrus.Entry) ([]byte, error) { return nil, nil }
