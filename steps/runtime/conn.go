// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"

	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

const dialTimeout = 3 * time.Second

// conn is the one connection to a pod's shim.
type conn struct {
	client *ttrpc.Client
	pod    shimapi.PodService
	tasks  taskapi.TTRPCTaskService
	gone   chan struct{} // closed when the shim has closed the connection
}

// dial gives the connection to a shim. ErrUnavailable if no shim listens there.
func (m *Manager) dial(ctx context.Context, address string) (*conn, error) {
	if c := m.connection(address); c != nil {
		return c, nil
	}
	n, err := dialUnix(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &conn{gone: make(chan struct{})}
	var once sync.Once
	c.client = ttrpc.NewClient(n, ttrpc.WithOnClose(func() {
		m.drop(address, c)
		once.Do(func() { close(c.gone) })
	}))
	c.pod = shimapi.NewPodClient(c.client)
	c.tasks = taskapi.NewTTRPCTaskClient(c.client)

	m.mu.Lock()
	other := m.conns[address]
	if other == nil {
		m.conns[address] = c
	}
	m.mu.Unlock()
	if other != nil { // somebody was faster
		_ = c.client.Close()
		return other, nil
	}
	if isClosed(c.gone) { // before it was entered
		m.drop(address, c)
	}
	return c, nil
}

// alive asks the shim for a sign of life.
func (c *conn) alive(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := c.tasks.Connect(ctx, &taskapi.ConnectRequest{})
	return native(err)
}

func (m *Manager) connection(address string) *conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.conns[address]
}

func (m *Manager) drop(address string, c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conns[address] == c {
		delete(m.conns, address)
	}
}

func dialUnix(ctx context.Context, address string) (*net.UnixConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	n, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return nil, fmt.Errorf("connect to shim: %w: %w", err, errdefs.ErrUnavailable)
	}
	u, ok := n.(*net.UnixConn)
	if !ok {
		_ = n.Close()
		return nil, fmt.Errorf("connect to shim at %s: not a unix socket: %w", address, errdefs.ErrInvalidArgument)
	}
	return u, nil
}

// native gives the shim's error its class; a lost connection is ErrUnavailable.
func native(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ttrpc.ErrClosed):
		return fmt.Errorf("shim has gone: %w: %w", err, errdefs.ErrUnavailable)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if _, ok := status.FromError(err); !ok {
		return err // never went over the wire
	}
	return errgrpc.ToNative(err)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
