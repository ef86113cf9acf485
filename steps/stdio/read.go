// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stdio

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const readSize = 32 << 10

var readBuffers = sync.Pool{New: func() any { b := make([]byte, readSize); return &b }}

// readChunks reads r to its end. A pipe that has nothing to read holds no
// buffer meanwhile: most containers are silent most of the time.
func readChunks(r io.Reader, use func([]byte)) error {
	conn, ok := r.(syscall.Conn)
	if !ok {
		return readPlain(r, use)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, rerr := 0, error(nil)
		var buf *[]byte
		err := raw.Read(func(fd uintptr) bool {
			buf, _ = readBuffers.Get().(*[]byte)
			n, rerr = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), *buf) })
			if errors.Is(rerr, unix.EAGAIN) {
				readBuffers.Put(buf)
				return false
			}
			return true
		})
		if err != nil {
			return ignoreClosed(err)
		}
		if n > 0 {
			use((*buf)[:n])
		}
		readBuffers.Put(buf)
		if rerr != nil || n <= 0 {
			return rerr
		}
	}
}

func readPlain(r io.Reader, use func([]byte)) error {
	buf := make([]byte, readSize)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			use(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return ignoreClosed(err)
		}
	}
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// ignoreClosed takes being told to stop for the end.
func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, fs.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}
