// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/klog/v2"
)

// dialTimeout bounds a connect inside a pod, for each address.
const dialTimeout = 10 * time.Second

func (s *Server) servePortForward(w http.ResponseWriter, r *http.Request, req *cri.PortForwardRequest) {
	opts := &portforward.V4Options{Ports: req.GetPort()}
	withoutTunnel(w, r, func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, forwarder{s, r.Context()}, req.GetPodSandboxId(), "",
			opts, s.cfg.IdleTimeout, s.cfg.CreationTimeout, portforward.SupportedProtocols)
	})
}

// forwarder serves the connections of one port-forward session. The streaming
// library calls it with a context that never ends; session ends with the client.
type forwarder struct {
	server  *Server
	session context.Context //nolint:containedctx // see above
}

// PortForward implements portforward.PortForwarder. Only a connection that
// could not be made is an error: clients give up the whole session on an error,
// so that one connection broken in use must not be reported as such.
func (f forwarder) PortForward(_ context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	done, ok := f.server.track()
	if !ok {
		return net.ErrClosed
	}
	defer done()
	conn, err := f.server.dial(f.session, pod, port) //nolint:contextcheck // see forwarder
	if err != nil {
		// The library resets both streams upon an error. A write first waits until
		// the client has been told that its stream exists: a reset that comes
		// earlier would take the reason's place.
		_, _ = stream.Write(nil) // fails if the client has gone
		return fmt.Errorf("connect to port %d of pod %s: %w", port, pod, err)
	}
	relay(f.session, conn, stream) //nolint:contextcheck // see forwarder
	return nil
}

// dial connects to a port on a pod's loopback, IPv4 first.
func (s *Server) dial(ctx context.Context, pod string, port int32) (*net.TCPConn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	path, err := s.resolver.PodNetNS(ctx, pod)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return dialLoopback(ctx, port)
	}
	var conn *net.TCPConn
	// The function runs on a thread of its own inside the namespace. A literal
	// address is dialled on the calling thread; the socket stays in the
	// namespace it was made in.
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
		c, err := dialLoopback(ctx, port)
		conn = c
		return err
	})
	if err != nil {
		if conn != nil {
			_ = conn.Close() // never used
		}
		return nil, err
	}
	return conn, nil
}

func dialLoopback(ctx context.Context, port int32) (*net.TCPConn, error) {
	var failures []error
	d := net.Dialer{Timeout: dialTimeout}
	for _, to := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		c, err := d.DialContext(ctx, to.network, net.JoinHostPort(to.host, strconv.Itoa(int(port))))
		if err != nil {
			failures = append(failures, err)
			continue
		}
		return c.(*net.TCPConn), nil //nolint:forcetypeassert // tcp4 and tcp6 give nothing else
	}
	return nil, fmt.Errorf("%w; %w", failures[0], failures[1])
}

// relay copies both ways until both have ended or ctx has, and closes conn.
// Each side is told when the other one has ended its output, and can still
// answer. If one side breaks, so does the other.
func relay(ctx context.Context, conn *net.TCPConn, stream io.ReadWriteCloser) {
	breakBoth := func() {
		_ = conn.Close() // it is being given up
		abort(stream)
	}
	stop := context.AfterFunc(ctx, breakBoth)
	defer stop()
	defer func() { _ = conn.Close() }() // all was sent, or it is broken
	logger := klog.FromContext(ctx)
	up := make(chan struct{})
	go func() {
		defer close(up)
		upload(conn, stream)
	}()
	if _, err := io.Copy(stream, conn); err != nil {
		if !errors.Is(err, net.ErrClosed) {
			logger.V(4).Info("A forwarded connection broke", "remote", conn.RemoteAddr(), "err", err)
		}
		breakBoth()
	} else {
		_ = stream.Close() // ends our direction; fails if the client has gone
	}
	<-up
}

// upload copies the client's input to conn. If conn no longer takes any, the
// rest is dropped: unread input would hold up all connections of the session,
// and an answer may still be on its way.
func upload(conn *net.TCPConn, stream io.Reader) {
	w := &failing{w: conn}
	_, _ = io.Copy(w, stream) // a stream ends when its client has gone, too
	if w.err != nil {
		_, _ = io.Copy(io.Discard, stream)
		return
	}
	_ = conn.CloseWrite() // fails if conn broke, which reading from it tells
}

// failing remembers that writing failed, to tell it from a failure to read.
type failing struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (f *failing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	f.err = err
	return n, err
}

// abort breaks a stream so that both sides notice.
func abort(stream io.Closer) {
	if r, ok := stream.(interface{ Reset() error }); ok {
		_ = r.Reset() // fails only if it is broken already
		return
	}
	_ = stream.Close()
}
