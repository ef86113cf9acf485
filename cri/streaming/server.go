// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streaming serves exec, attach and port-forward: it hands out URLs
// that work once and for a minute, serves SPDY and WebSocket clients on them
// with k8s.io/cri-streaming, and runs ExecSync.
//
// A session lives as long as both of its ends. When the client hangs up, what
// it was running is ended; when the process ends, all of its output is sent
// before its exit status, and then the connection is closed.
package streaming

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
)

const (
	// defaultIdleTimeout is kubelet's streamingConnectionIdleTimeout.
	defaultIdleTimeout = 4 * time.Hour
	// headerTimeout bounds how long a connected client may take to make its request.
	headerTimeout = 30 * time.Second
	// closeTimeout bounds how long Close waits for sessions it has cut.
	closeTimeout = 20 * time.Second
)

// Config of the streaming server.
type Config struct {
	// Address to listen on (default 127.0.0.1) and to put into URLs. For an
	// unspecified address (0.0.0.0, ::) URLs have loopback.
	Address string
	// Port to listen on; "" and "0" let the system choose one.
	Port string
	// IdleTimeout closes a session without traffic (default 4 hours).
	IdleTimeout time.Duration
	// CreationTimeout is how long a SPDY client may take to open its streams (default 30 seconds).
	CreationTimeout time.Duration
	// MaxExecPerContainer bounds the exec and attach sessions, ExecSync
	// included, that a container has at once; 0 is no bound.
	MaxExecPerContainer int
	// TLS, if set, makes URLs https.
	TLS *tls.Config
}

// Server implements the streaming RPCs of the CRI. It is safe for concurrent use.
type Server struct {
	cfg      Config
	resolver Resolver
	tokens   *tokens
	limits   *limiter
	http     *http.Server

	ctx    context.Context // ends with the server
	cancel context.CancelFunc

	mu       sync.Mutex
	base     *url.URL // nil until Start
	listener *listener
	closed   bool
	sessions sync.WaitGroup // requests being served, and goroutines that outlive their RPC
}

// New makes a server; Start or Run makes it listen.
func New(c Config, r Resolver) (*Server, error) {
	if r == nil {
		return nil, fmt.Errorf("make a streaming server: no resolver: %w", errdefs.ErrInvalidArgument)
	}
	if c.IdleTimeout < 0 || c.CreationTimeout < 0 || c.MaxExecPerContainer < 0 {
		return nil, fmt.Errorf("make a streaming server: a timeout or limit is negative: %w", errdefs.ErrInvalidArgument)
	}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	if c.Port == "" {
		c.Port = "0"
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = defaultIdleTimeout
	}
	if c.CreationTimeout == 0 {
		c.CreationTimeout = remotecommand.DefaultStreamCreationTimeout
	}
	s := &Server{
		cfg:      c,
		resolver: r,
		tokens:   newTokens(tokenTTL, maxTokens),
		limits:   newLimiter(c.MaxExecPerContainer),
	}
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerTimeout,
		ConnContext:       connContext,
	}
	return s, nil
}

// Start listens and serves in the background until Close. Sessions keep ctx's values.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		return fmt.Errorf("start the streaming server: it was started before: %w", errdefs.ErrFailedPrecondition)
	}
	addr := net.JoinHostPort(s.cfg.Address, s.cfg.Port)
	raw, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for streaming clients: %w", err)
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.listener = newListener(s.ctx, raw) //nolint:contextcheck // sessions outlive Start
	s.base = baseURL(s.cfg, raw.Addr())
	var l net.Listener = s.listener
	if s.cfg.TLS != nil {
		l = tls.NewListener(l, s.cfg.TLS)
	}
	logger := klog.FromContext(ctx)
	logger.V(2).Info("Streaming server listens", "url", s.base.String())
	s.sessions.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "Streaming server stopped")
		}
	})
	return nil
}

// Run starts the server, serves until ctx ends, and closes it.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// Close cuts all sessions and waits (bounded) for them to end.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	l := s.listener
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	s.cancel()
	err := s.http.Close()
	l.closeAll()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close the streaming server: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		s.sessions.Wait()
		close(ended)
	}()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("close the streaming server: sessions did not end within %s: %w", closeTimeout, errdefs.ErrUnavailable)
	}
}

// context is the one of what is done on behalf of the server itself.
func (s *Server) context() (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base == nil || s.closed {
		return nil, fmt.Errorf("the streaming server does not run: %w", errdefs.ErrUnavailable)
	}
	return s.ctx, nil
}

// track counts a session in; done counts it out. It refuses once the server is closed.
func (s *Server) track() (done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	s.sessions.Add(1)
	return s.sessions.Done, true
}

// connContext gives a request the context of its connection, which ends when
// the client has gone.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, ok := c.(*conn)
	if !ok {
		return ctx
	}
	return context.WithValue(own.ctx, connKey{}, own)
}

type connKey struct{}

// routes maps URLs to sessions. A token is void after the first try, whatever
// comes of it.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" /exec/{token}", route(s, s.serveExec))
		mux.HandleFunc(method+" /attach/{token}", route(s, s.serveAttach))
		mux.HandleFunc(method+" /portforward/{token}", route(s, s.servePortForward))
	}
	return mux
}

// route redeems the token of a request of type R and serves it.
func route[R any](s *Server, serve func(http.ResponseWriter, *http.Request, R)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		done, ok := s.track()
		if !ok {
			http.Error(w, "the streaming server is closed", http.StatusServiceUnavailable)
			return
		}
		defer done()
		held, ok := s.tokens.redeem(r.PathValue("token"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		req, ok := held.(R)
		if !ok {
			http.NotFound(w, r)
			return
		}
		// The library leaves a hijacked connection open if its client opens too
		// few streams; nothing else is ever served on this one.
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			defer func() { _ = c.Close() }() // closing again is no error
		}
		serve(w, r, req)
	}
}

// url is where the client of a token connects to.
func (s *Server) url(kind string, req any) (string, error) {
	if _, err := s.context(); err != nil {
		return "", err
	}
	token, err := s.tokens.issue(req)
	if err != nil {
		return "", err
	}
	return s.base.JoinPath(kind, token).String(), nil
}

func baseURL(c Config, bound net.Addr) *url.URL {
	u := &url.URL{Scheme: "http", Host: bound.String()}
	if c.TLS != nil {
		u.Scheme = "https"
	}
	tcp, ok := bound.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return u
	}
	loopback := "127.0.0.1"
	if tcp.IP.To4() == nil && c.Address != "0.0.0.0" {
		loopback = "::1"
	}
	u.Host = net.JoinHostPort(loopback, fmt.Sprint(tcp.Port))
	return u
}
