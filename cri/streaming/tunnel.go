// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// farewell bounds how long telling a client that its tunnel ends may take.
const farewell = time.Second

// tunnelUpgrader accepts a client whatever page it says to come from: what
// admits it is the token in the URL.
var tunnelUpgrader = websocket.Upgrader{
	CheckOrigin:  func(*http.Request) bool { return true },
	Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1},
}

// withoutTunnel serves port-forward clients that speak SPDY within WebSocket
// messages, as kubectl and crictl do, with a handler that knows SPDY only;
// all other requests it gets as they are.
func withoutTunnel(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
	if !wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		serve(w, r)
		return
	}
	logger := klog.FromContext(r.Context())
	ws, err := tunnelUpgrader.Upgrade(w, r, nil) // answers the client if it fails
	if err != nil {
		logger.Info("Could not open a WebSocket session", "err", err)
		return
	}
	inner := &tunnel{Conn: ws}
	defer func() { _ = inner.Close() }() // the client may have gone first
	if ws.Subprotocol() == "" {
		return // it wants another tunnel than ours, and has not been promised one
	}
	plain := r.Clone(r.Context())
	plain.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	plain.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	plain.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardV1Name)
	serve(&tunnelResponse{header: http.Header{}, conn: inner}, plain)
}

// tunnelResponse is the answer to the upgrade to SPDY that a tunnel's client
// never asked for: it is dropped, and the connection is the tunnel.
type tunnelResponse struct {
	header http.Header
	conn   *tunnel
}

// Header implements http.ResponseWriter.
func (t *tunnelResponse) Header() http.Header { return t.header }

// WriteHeader implements http.ResponseWriter.
func (t *tunnelResponse) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (t *tunnelResponse) Write(b []byte) (int, error) { return len(b), nil }

// Hijack implements http.Hijacker.
func (t *tunnelResponse) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return t.conn, bufio.NewReadWriter(bufio.NewReader(t.conn), bufio.NewWriter(t.conn)), nil
}

// tunnel is a net.Conn whose bytes are the content of binary WebSocket
// messages; how they are cut into messages means nothing.
type tunnel struct {
	*websocket.Conn

	current io.Reader // the rest of a message; of the one reader

	writing sync.Mutex
	closing sync.Once
}

var errNotBinary = errors.New("a message of a tunnel is not binary")

// Read implements net.Conn. The end of the session is io.EOF.
func (t *tunnel) Read(b []byte) (int, error) {
	for {
		if t.current == nil {
			kind, message, err := t.NextReader()
			switch {
			case websocket.IsCloseError(err, websocket.CloseNormalClosure, websocket.CloseGoingAway):
				return 0, io.EOF
			case err != nil:
				return 0, err
			case kind != websocket.BinaryMessage:
				return 0, errNotBinary
			}
			t.current = message
		}
		n, err := t.current.Read(b)
		if errors.Is(err, io.EOF) {
			t.current, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write implements net.Conn.
func (t *tunnel) Write(b []byte) (int, error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if err := t.WriteMessage(websocket.BinaryMessage, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close implements net.Conn; it tells the client that this is the end.
func (t *tunnel) Close() (err error) {
	t.closing.Do(func() {
		end := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		_ = t.WriteControl(websocket.CloseMessage, end, time.Now().Add(farewell)) // the client may have gone first
		err = t.Conn.Close()
	})
	return err
}

// SetDeadline implements net.Conn.
func (t *tunnel) SetDeadline(at time.Time) error {
	return errors.Join(t.SetReadDeadline(at), t.SetWriteDeadline(at))
}
