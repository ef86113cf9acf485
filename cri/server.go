// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cri is the CRI v1 server: every RPC checks its request, translates
// it, makes one move on the engine and translates the answer back. What the
// moves do is in steps/; what is true of a pod is in the engine's records,
// which reads look at without waiting for a move.
package cri

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/images"
	"github.com/sandflow-cri/sandflow/cri/stats"
	"github.com/sandflow-cri/sandflow/cri/streaming"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
)

// Dependencies is what the server stands on.
type Dependencies struct {
	Engine   *engine.Engine
	Services *steps.Services
	Stream   streaming.Config
	// Version of the daemon, as Version and Status report it.
	Version string
	// Config is shown in the verbose Status as JSON.
	Config any
}

// Server answers the CRI. RPCs it does not build yet answer Unimplemented, each
// with its name.
type Server struct {
	runtime.UnimplementedRuntimeServiceServer

	engine   *engine.Engine
	services *steps.Services
	config   steps.Config
	version  string
	shown    any

	images    *images.Service
	stream    *streaming.Server
	stats     *stats.Reader
	layers    layers
	layerUse  *layerUse
	monitor   *monitor
	unclaimed unclaimed
	features  handlerFeatures
	podCIDR   podCIDR
	cuts      *cuts
	drain     *drain
}

// New returns a server. It starts nothing: Start and Run do.
func New(d Dependencies) (*Server, error) {
	s := &Server{
		engine: d.Engine, services: d.Services, config: d.Services.Config,
		version: d.Version, shown: d.Config,
		images: images.New(d.Services.Store, d.Engine, images.WithHandlers(func(handler string) (string, bool) {
			rt, ok := d.Services.Config.RuntimeFor(handler)
			return rt.Snapshotter, ok
		})),
		stats: stats.New(stats.Options{}), layers: d.Services.Store, drain: newDrain(), cuts: newCuts(),
	}
	s.layerUse = newLayerUse(s.layers)
	s.monitor = newMonitor(d.Engine, d.Services.Runtime)
	s.monitor.forget = s.stats.Forget
	stream, err := streaming.New(d.Stream, resolver{s})
	if err != nil {
		return nil, fmt.Errorf("make the streaming server: %w", err)
	}
	s.stream = stream
	return s, nil
}

// Register adds the CRI services to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	runtime.RegisterRuntimeServiceServer(g, s)
	runtime.RegisterImageServiceServer(g, s.images)
}

// Start finds out which pods have lost their shims while no daemon ran, and listens for
// streaming clients. From then on what the server answers is true, and the URLs that it
// hands out work; so nobody should be served before. Run must follow.
func (s *Server) Start(ctx context.Context) error {
	s.features.detect(ctx, s.config)
	s.monitor.look(ctx)
	if err := s.stream.Start(ctx); err != nil {
		return fmt.Errorf("start the CRI server: %w", err)
	}
	return nil
}

// Run watches processes until ctx ends, then stops serving streams. Pods are left as they are.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.monitor.run(ctx, s.goOnStoppingAll) })
	wg.Go(func() { s.mendCheckpoints(ctx) })
	wg.Go(func() { s.mendLimits(ctx) })
	<-ctx.Done()
	err := s.stream.Close()
	s.layerUse.close()
	wg.Wait()
	return err
}
