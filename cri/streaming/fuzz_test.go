// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// FuzzURL asks for arbitrary URLs: only a token that was handed out, and only with its own
// kind of session, gets further than "not found".
func FuzzURL(f *testing.F) {
	s, err := New(Config{}, &node{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("GET", "/exec/", "websocket", "v5.channel.k8s.io")
	f.Add("POST", "/attach/AAAAAAAAAAAAAAAAAAAAAAAAAA", "SPDY/3.1", "v4.channel.k8s.io")
	f.Add("GET", "/portforward/../exec/x", "websocket", "SPDY/3.1+portforward.k8s.io")
	f.Add("GET", "/exec/%2e%2e/x?command=id", "", "")
	f.Fuzz(func(t *testing.T, method, path, upgrade, protocol string) {
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		r := (&http.Request{Method: method, URL: u, Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "h"}).WithContext(t.Context())
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
		r.Header.Set("Sec-Websocket-Protocol", protocol)
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		if w.Code < 300 {
			t.Errorf("%s %q gives %d", method, path, w.Code)
		}
	})
}

// FuzzToken redeems arbitrary tokens: none is one but those handed out, each of which is one once.
func FuzzToken(f *testing.F) {
	f.Add("")
	f.Add("AAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Fuzz(func(t *testing.T, guess string) {
		tokens := newTokens(tokenTTL, maxTokens)
		token, err := tokens.issue("request")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := tokens.redeem(guess); ok && guess != token {
			t.Errorf("%q is a token", guess)
		}
		if held, ok := tokens.redeem(token); !ok || held != "request" {
			t.Errorf("the token was void: %v", held)
		}
		if _, ok := tokens.redeem(token); ok {
			t.Error("the token works twice")
		}
		if strings.ContainsAny(token, "/?#%") {
			t.Errorf("token %q needs quoting", token)
		}
	})
}

// FuzzSizes decodes terminal sizes as a client may send them.
func FuzzSizes(f *testing.F) {
	f.Add([]byte(`{"Width":80,"Height":24}{"Width":1}`))
	f.Add([]byte(`{"Width":-1}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		sizes := make(chan remotecommand.TerminalSize)
		go decodeSizes(ctx, bytes.NewReader(raw), sizes)
		for range sizes {
		}
	})
}
