// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// input is the write end of a container's stdin, shared by the clients that attach.
type input struct {
	once    bool // close it when the first client with stdin has gone
	onClose func()

	turn chan struct{} // holds one token; who has it writes
	file *os.File      // must support write deadlines: a pipe or FIFO
	done sync.Once
}

func newInput(f *os.File, once bool, onClose func()) *input {
	in := &input{once: once, onClose: onClose, turn: make(chan struct{}, 1), file: f}
	in.turn <- struct{}{}
	return in
}

// feed copies r to the container until r or ctx ends.
func (in *input) feed(ctx context.Context, r io.Reader) {
	defer func() {
		if in.once {
			in.close()
		}
	}()
	// A container that does not read must not keep the client's goroutine: the deadline wakes it.
	stop := context.AfterFunc(ctx, func() { _ = in.file.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4<<10)
	for ctx.Err() == nil {
		n, err := r.Read(buf)
		if n > 0 && in.write(ctx, buf[:n]) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// write writes all of b, in one piece as far as other clients are concerned.
func (in *input) write(ctx context.Context, b []byte) error {
	select {
	case <-in.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { in.turn <- struct{}{} }()
	for len(b) > 0 {
		n, err := in.file.Write(b)
		b = b[n:]
		switch {
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case ctx.Err() != nil:
			_ = in.file.SetWriteDeadline(time.Time{})
			return ctx.Err()
		default: // the deadline of a client that has left
			_ = in.file.SetWriteDeadline(time.Time{})
		}
	}
	return nil
}

func (in *input) close() {
	in.done.Do(func() {
		_ = in.file.Close()
		if in.onClose != nil {
			in.onClose()
		}
	})
}

// abandon lets go of the container's stdin without closing it for the container.
func (in *input) abandon() {
	in.done.Do(func() { _ = in.file.Close() })
}
