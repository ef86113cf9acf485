// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/sirupsen/logrus" //nolint:depguard // what containerd logs with is taken to klog here
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
)

var bridgeOnce sync.Once

// bridgeLogs sends containerd's log, which is logrus's standard logger, to klog.
// It is done once per process, as both are the process's own.
func bridgeLogs() {
	bridgeOnce.Do(func() {
		logrus.SetOutput(io.Discard)
		logrus.AddHook(klogHook{})
		// containerd ends its process when a socket cannot be served any more, also one
		// that is closed before serving has begun. The pods' daemon goes on without it.
		logrus.StandardLogger().ExitFunc = func(int) {}
		logrus.SetLevel(logrus.InfoLevel)
		if klog.V(verbosity(logrus.DebugLevel)).Enabled() {
			logrus.SetLevel(logrus.DebugLevel)
		}
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	})
}

// verbosity says how loud klog must be for a level of containerd's: its info is our detail.
func verbosity(l logrus.Level) klog.Level {
	switch l {
	case logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel:
		return 0
	case logrus.InfoLevel:
		return 4
	case logrus.DebugLevel, logrus.TraceLevel:
		return 5
	default:
		return 5
	}
}

type klogHook struct{}

// Levels are all.
func (klogHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire writes one entry.
func (klogHook) Fire(e *logrus.Entry) error {
	v := verbosity(e.Level)
	if !klog.V(v).Enabled() {
		return nil
	}
	logger := klog.Background().WithName("containerd")
	kv := make([]any, 0, 2*len(e.Data)) //nolint:mnd // a key and a value each
	var cause error
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		val := e.Data[k]
		if err, ok := val.(error); ok && k == logrus.ErrorKey {
			cause = err
			continue
		}
		kv = append(kv, k, val)
	}
	if e.Level <= logrus.ErrorLevel {
		logger.Error(cause, e.Message, kv...)
		return nil
	}
	if cause != nil {
		kv = append(kv, "err", cause)
	}
	logger.V(int(v)).Info(e.Message, kv...)
	return nil
}
