// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// linger is how long a closed connection still takes (and drops) what its
// client sends, so that the client can read to the end. Closing a socket with
// unread input would reset it and destroy output in flight.
const linger = 30 * time.Second

// listener hands out connections that tell when their client is gone. It keeps
// track of all of them, since net/http forgets a connection once it is
// hijacked, and every streaming connection is.
type listener struct {
	net.Listener
	ctx context.Context

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
	drains sync.WaitGroup
}

func newListener(ctx context.Context, l net.Listener) *listener {
	return &listener{Listener: l, ctx: ctx, conns: map[*conn]struct{}{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, owner: l}
	c.ctx, c.gone = context.WithCancel(l.ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		c.gone()
		_ = raw.Close() // nothing was sent on it
		return nil, net.ErrClosed
	}
	l.conns[c] = struct{}{}
	return c, nil
}

// closeAll cuts every connection and waits until none is left.
func (l *listener) closeAll() {
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		c.gone()
		_ = c.Conn.Close() // being cut: there is nobody to tell
	}
	l.mu.Unlock()
	l.drains.Wait()
}

// startDrain says whether a closing connection may linger.
func (l *listener) startDrain() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.drains.Add(1)
	return true
}

func (l *listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// conn is a connection whose ctx ends when the client has gone (reading fails)
// or when it is closed. SPDY and WebSocket servers read all the time, so that
// this notices a client that hangs up on a session without any traffic.
type conn struct {
	net.Conn
	owner *listener
	ctx   context.Context
	gone  context.CancelFunc

	reading sync.Mutex
	closing atomic.Bool
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.closing.Load() {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b)
	if err != nil && c.closing.Load() {
		return n, io.EOF // Close interrupted it; any other error gets logged
	}
	// net/http interrupts its own background read by a deadline when a
	// connection is hijacked: that is no sign of the client.
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.gone()
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.gone()
	}
	return n, err
}

// Close ends the output, and goes on reading for a while so that the client
// gets all of it.
func (c *conn) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	c.gone()
	tcp, ok := c.Conn.(*net.TCPConn)
	if !ok || !c.owner.startDrain() {
		c.owner.forget(c)
		return c.Conn.Close()
	}
	_ = tcp.CloseWrite()                 // fails if the client was faster
	_ = tcp.SetDeadline(time.Unix(1, 0)) // ends a Read or Write in progress
	go c.drain()
	return nil
}

func (c *conn) drain() {
	defer c.owner.drains.Done()
	defer c.owner.forget(c)
	c.reading.Lock()
	defer c.reading.Unlock()
	_ = c.SetReadDeadline(time.Now().Add(linger)) // fails only on a closed socket
	_, _ = io.Copy(io.Discard, c.Conn)            // whatever it is, nobody wants it
	_ = c.Conn.Close()                            // the output has been ended before
}
