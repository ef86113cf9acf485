// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"bytes"
	"io"
	"testing"
)

// FuzzFrames receives arbitrary bytes as frames: what comes through is what was sent, no frame
// is larger than the limit, and the end is an error.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{byte(KindStdin), 0, 0, 0, 2, 'h', 'i', byte(KindStdinEnd), 0, 0, 0, 0})
	f.Add([]byte{byte(KindRequest), 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{byte(KindStdin), 0, 0, 0, 9, 'h'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := NewConn(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(raw), io.Discard})
		var back bytes.Buffer
		out := NewConn(&back)
		for {
			kind, payload, err := in.Receive()
			if err != nil {
				break
			}
			if err := out.Send(kind, payload); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(raw, back.Bytes()) {
			t.Errorf("%q came through as %q", raw, back.Bytes())
		}
	})
}
