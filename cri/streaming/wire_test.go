// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// wire is the network between clients and a server. Cutting it is what happens
// when the clients' processes end.
type wire struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  []net.Conn
}

func newWire(t *testing.T) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l}
	w.wg.Go(w.serve)
	t.Cleanup(func() {
		_ = l.Close()
		w.cut()
		w.wg.Wait()
	})
	return w
}

// through gives the URL that leads to the server of address by the wire.
func (w *wire) through(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.target = u.Host
	w.mu.Unlock()
	u.Host = w.listener.Addr().String()
	return u.String()
}

func (w *wire) serve() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		server, err := net.Dial("tcp", w.target)
		if err == nil {
			w.conns = append(w.conns, client, server)
		}
		w.mu.Unlock()
		if err != nil {
			_ = client.Close()
			continue
		}
		w.wg.Go(func() { pass(client, server) })
		w.wg.Go(func() { pass(server, client) })
	}
}

// pass copies one direction to its end and then closes both.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	_ = to.Close()
	_ = from.Close()
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

// open is how many connections a listener has not closed.
func (l *listener) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}
