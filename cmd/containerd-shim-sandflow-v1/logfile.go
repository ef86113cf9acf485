// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/sirupsen/logrus"
)

// maxLog bounds the shim's own log in bytes.
const maxLog = 1 << 20

// logTo sends the log to f, which is begun anew when it has grown too long. The
// runtime's last words on a crash go to the same file.
func logTo(f *os.File) {
	logrus.SetOutput(boundedFile{f})
	logrus.SetLevel(logrus.InfoLevel)
	logrus.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
}

type boundedFile struct{ f *os.File }

func (b boundedFile) Write(p []byte) (int, error) {
	if st, err := b.f.Stat(); err == nil && st.Mode().IsRegular() && st.Size() > maxLog {
		_ = b.f.Truncate(0) // opened with O_APPEND: the next write begins at the start
	}
	_, _ = b.f.Write(p) // a full disk must not trouble the shim
	return len(p), nil
}
