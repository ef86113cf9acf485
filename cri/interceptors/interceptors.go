// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package interceptors holds what all RPCs have in common: logging, metrics,
// gRPC codes, and that a panic is the end of one request only.
package interceptors

import (
	"context"
	"fmt"
	"path"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// maxMessage bounds a message in either direction, in bytes: twice what kubelet
// receives (16 MiB), so that the bound is never ours.
const maxMessage = 32 << 20

// Options of a gRPC server.
type Options struct {
	// Logger of the RPCs; the zero value is klog's own. Handlers find it, with
	// the IDs of the request, by klog.FromContext.
	Logger klog.Logger
	// Registerer of the metrics; nil: none.
	Registerer prometheus.Registerer
}

// ServerOptions are the options of a gRPC server that serves the CRI.
func ServerOptions(o Options) ([]grpc.ServerOption, error) {
	if o.Logger.GetSink() == nil {
		o.Logger = klog.Background()
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	c := chain{logger: o.Logger, metrics: m}
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.ChainUnaryInterceptor(c.unary),
		grpc.ChainStreamInterceptor(c.stream),
	}, nil
}

// chain is all of it, for one server.
type chain struct {
	logger  klog.Logger
	metrics *metrics
}

func (c chain) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	var reply any
	err := c.around(ctx, info.FullMethod, req, func(ctx context.Context) (any, error) {
		var err error
		reply, err = next(ctx, req)
		return reply, err
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

func (c chain) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return c.around(ss.Context(), info.FullMethod, nil, func(ctx context.Context) (any, error) {
		return nil, next(srv, streamWith{ss, ctx})
	})
}

// around serves one RPC; its error is a gRPC status.
func (c chain) around(ctx context.Context, fullMethod string, req any, serve func(context.Context) (any, error)) error {
	method := path.Base(fullMethod)
	logger := c.logger.WithValues(append([]any{"rpc", method}, fields(req)...)...)
	if l := logger.V(levelBody); l.Enabled() && req != nil {
		l.Info("RPC begins", "request", body(req))
	}
	start := time.Now()
	end := c.metrics.begin(method)
	reply, err := protect(klog.NewContext(ctx, logger), serve)
	err = inContext(ctx, err)
	end(Code(err))
	record(logger, method, reply, err, time.Since(start))
	if l := logger.V(levelBody); l.Enabled() && reply != nil && err == nil {
		l.Info("RPC ends", "reply", body(reply))
	}
	return Status(err)
}

// protect turns a panic of the handler into an error, and logs its stack.
func protect(ctx context.Context, serve func(context.Context) (any, error)) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "RPC panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			reply, err = nil, status.Errorf(codes.Internal, "the daemon failed on this request: panic: %v", p)
		}
	}()
	return serve(ctx)
}

// inContext gives an error of no known class that of the request's context, if
// that has ended: it is then the likely cause.
func inContext(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || Code(err) != codes.Unknown {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// streamWith is a stream with another context.
type streamWith struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // the interface has a getter for it
}

// Context implements grpc.ServerStream.
func (s streamWith) Context() context.Context { return s.ctx }
