// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Kind is the first byte of a frame on a stream connection.
type Kind byte

// The frames. A client sends one KindRequest, then KindStdin and KindStdinEnd;
// the shim sends KindStarted, KindStdout, KindStderr and one KindResult.
const (
	KindRequest Kind = iota + 1
	KindStdin
	KindStdinEnd
	KindStarted
	KindStdout
	KindStderr
	KindResult
	// KindStdinTaken tells the client that one frame of KindStdin was used up.
	// At most StdinWindow of them may be on their way, so that the shim can
	// always read on and notice that the client has gone.
	KindStdinTaken
)

// StdinWindow is the number of KindStdin frames that may be unanswered.
const StdinWindow = 8

// maxFrame bounds what one frame makes the receiver allocate.
const maxFrame = 8 << 20

// DataFrame is the most bytes of data that are sent in one frame.
const DataFrame = 32 << 10

// Request opens a stream connection.
type Request struct {
	// ID is the container, ExecID the new process; an empty ExecID attaches to the container.
	ID     string `json:"id"`
	ExecID string `json:"execId,omitempty"`
	// Process of an exec.
	Process *specs.Process `json:"process,omitempty"`
	// The streams that the client wants.
	Stdin  bool `json:"stdin,omitempty"`
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
}

// Result ends a stream connection: an exit code, or an error as a gRPC status.
type Result struct {
	Exit    uint32 `json:"exit,omitempty"`
	Code    uint32 `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Conn sends and receives frames. Send may be called by several goroutines, Receive by one.
type Conn struct {
	rw io.ReadWriter
	mu sync.Mutex
}

// NewConn returns a Conn on rw.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

// Send sends one frame.
func (c *Conn) Send(k Kind, payload []byte) error {
	if len(payload) > maxFrame {
		return fmt.Errorf("send %d bytes in one frame: at most %d", len(payload), maxFrame)
	}
	b := make([]byte, 5, 5+len(payload))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload))) //nolint:gosec // bounded above
	b = append(b, payload...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.rw.Write(b)
	return err
}

// SendJSON sends v as JSON in one frame.
func (c *Conn) SendJSON(k Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(k, b)
}

// Receive waits for the next frame. It returns io.EOF when the peer has closed between frames.
func (c *Conn) Receive() (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.rw, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("receive a frame of %d bytes: at most %d", n, maxFrame)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(c.rw, payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(head[0]), payload, nil
}

// Writer gives a writer that sends frames of kind k.
func (c *Conn) Writer(k Kind) io.Writer { return frameWriter{c, k} }

type frameWriter struct {
	c *Conn
	k Kind
}

func (w frameWriter) Write(p []byte) (int, error) {
	done := 0
	for len(p) > 0 {
		n := min(len(p), DataFrame)
		if err := w.c.Send(w.k, p[:n]); err != nil {
			return done, err
		}
		p = p[n:]
		done += n
	}
	return done, nil
}
