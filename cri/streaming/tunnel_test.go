// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// dialTunnel opens a tunnel without a SPDY client in it.
func dialTunnel(t *testing.T, s *Server, protocols ...string) (*websocket.Conn, error) {
	t.Helper()
	reply, err := s.GetPortForward(&cri.PortForwardRequest{PodSandboxId: "host"})
	if err != nil {
		t.Fatal(err)
	}
	u := "ws" + strings.TrimPrefix(reply.GetUrl(), "http")
	d := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: 10 * time.Second}
	ws, answer, err := d.DialContext(t.Context(), u, http.Header{"Origin": {"https://elsewhere.example"}})
	if answer != nil {
		_ = answer.Body.Close()
	}
	return ws, err
}

// ended waits until the server has ended a tunnel, and gives the error of the end.
func ended(t *testing.T, ws *websocket.Conn) error {
	t.Helper()
	if err := ws.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			return err
		}
	}
}

// What is no SPDY ends the tunnel that it comes through, in order, and leaves nothing.
func TestTunnelRefusesNonsense(t *testing.T) {
	s, _ := serve(t, Config{})
	before := count(t)
	for name, message := range map[string]struct {
		kind int
		data string
	}{
		"text":    {websocket.TextMessage, "hello"},
		"garbage": {websocket.BinaryMessage, "\x80\x09\xff\xff\x00\x00\x00\x00"},
		"close":   {websocket.CloseMessage, string(websocket.FormatCloseMessage(websocket.CloseGoingAway, ""))},
	} {
		ws, err := dialTunnel(t, s, portforward.WebsocketsSPDYTunnelingPortForwardV1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := ws.WriteMessage(message.kind, []byte(message.data)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = ended(t, ws)
		if _, ok := errors.AsType[*websocket.CloseError](err); !ok {
			t.Errorf("%s: the tunnel ends with %v", name, err)
		}
		_ = ws.Close()
	}
	settle(t, before)
}

// A client of a tunnel that is not port-forward is let go.
func TestTunnelOfAnotherProtocol(t *testing.T) {
	s, _ := serve(t, Config{})
	ws, err := dialTunnel(t, s, "SPDY/3.1+other.k8s.io")
	if err != nil {
		return // refused at once
	}
	defer func() { _ = ws.Close() }()
	if got := ws.Subprotocol(); got != "" {
		t.Errorf("the server agreed to %q", got)
	}
	_ = ended(t, ws)
}

// A client that goes without a word while connections are open leaves nothing.
func TestTunnelCut(t *testing.T) {
	s, _ := serve(t, Config{})
	before := count(t)
	for range 50 {
		ws, err := dialTunnel(t, s, portforward.WebsocketsSPDYTunnelingPortForwardV1)
		if err != nil {
			t.Fatal(err)
		}
		_ = ws.NetConn().Close()
	}
	settle(t, before)
}
