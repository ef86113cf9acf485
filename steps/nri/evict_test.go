// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"context"
	"net"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/sandflow-cri/sandflow/steps/nri"
)

// evictor is a plugin below the stub: it serves just what registration needs.
type evictor struct {
	api.PluginService

	configured chan struct{}
}

func (e *evictor) Configure(context.Context, *api.ConfigureRequest) (*api.ConfigureResponse, error) {
	return &api.ConfigureResponse{Events: int32(api.MustParseEventMask("RunPodSandbox"))}, nil
}

func (e *evictor) Synchronize(context.Context, *api.SynchronizeRequest) (*api.SynchronizeResponse, error) {
	close(e.configured)
	return &api.SynchronizeResponse{}, nil
}

// evict joins as a plugin and wants a container evicted, out of turn.
func evict(t *testing.T, c nri.Config, id, reason string) {
	t.Helper()
	conn, err := net.Dial("unix", c.SocketPath)
	fatal(t, err)
	mux := multiplex.Multiplex(conn)
	t.Cleanup(func() { _ = mux.Close() })
	listener, err := mux.Listen(multiplex.PluginServiceConn)
	fatal(t, err)
	server, err := ttrpc.NewServer()
	fatal(t, err)
	e := &evictor{configured: make(chan struct{})}
	api.RegisterPluginService(server, e)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(context.WithoutCancel(t.Context()), listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	out, err := mux.Open(multiplex.RuntimeServiceConn)
	fatal(t, err)
	client := ttrpc.NewClient(out)
	t.Cleanup(func() { _ = client.Close() })
	runtime := api.NewRuntimeClient(client)
	_, err = runtime.RegisterPlugin(t.Context(), &api.RegisterPluginRequest{PluginName: "evictor", PluginIdx: "50"})
	fatal(t, err)
	<-e.configured
	_, err = runtime.UpdateContainers(t.Context(), &api.UpdateContainersRequest{
		Evict: []*api.ContainerEviction{{ContainerId: id, Reason: reason}},
	})
	fatal(t, err)
}
