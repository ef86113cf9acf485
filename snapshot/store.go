// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/plugin"
	"golang.org/x/sync/semaphore"
)

// Store is containerd as seen by the rest of sandflow. It is safe for concurrent use.
type Store struct {
	config Config

	client  *containerd.Client
	server  *server.Server // embedded only
	db      *metadata.DB   // embedded only
	plugins *plugin.Set    // not changed once Start has returned

	view                   *view
	pulls                  pullGroup
	slots                  *semaphore.Weighted // nil: unlimited pulls
	blobs                  keyedLock
	imageUse, containerUse usageCache
	layers                 layerUse
	closed                 atomic.Bool
	// removed holds a token while there is something to collect, see collectLater.
	removed chan struct{}

	ctx    context.Context //nolint:containedctx // ends with the store, for its own goroutines
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// Start starts containerd inside this process, or connects to the one at
// c.Address. Either way all io.sandflow.* plugins of containerd's registry are
// initialised with it; they see ctx's values in ic.Context, and are closed by
// Close if they are io.Closers. The end of ctx does not end the store.
func Start(ctx context.Context, c Config) (*Store, error) {
	if c.Namespace == "" {
		c.Namespace = "k8s.io"
	}
	if c.Snapshotter == "" {
		c.Snapshotter = "overlayfs"
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(c.State, "containerd.sock")
	}
	bridgeLogs()
	s := &Store{config: c, removed: make(chan struct{}, 1)}
	if c.MaxPulls > 0 {
		s.slots = semaphore.NewWeighted(int64(c.MaxPulls))
	}
	base, cancel := detach(ctx)
	s.ctx, s.cancel = base, cancel
	start := s.startEmbedded
	if c.Address != "" {
		start = s.startAttached
	}
	if err := start(context.WithValue(base, storeKey{}, s)); err != nil {
		return nil, errors.Join(err, s.Close()) //nolint:contextcheck // what Close ends has the store's context
	}
	return s, nil
}

// open begins the store's own work; the client is there.
func (s *Store) open() error {
	s.view = newView(s)
	ctx := s.Context(s.ctx)
	if err := s.dropStaleLeases(ctx); err != nil {
		return fmt.Errorf("remove leases of pulls that did not end: %w", err)
	}
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		s.view.follow(ctx)
	}()
	return nil
}

// Client of containerd. Its calls need a namespace in their context: see Context.
func (s *Store) Client() *containerd.Client { return s.client }

// Context puts the store's namespace into ctx, for direct use of Client.
func (s *Store) Context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, s.config.Namespace)
}

// Plugin returns the instance of an initialised plugin, or why it failed.
func (s *Store) Plugin(t plugin.Type, id string) (any, error) {
	p := s.plugins.Get(t, id)
	if p == nil {
		return nil, fmt.Errorf("plugin %s.%s: %w", t, id, errdefs.ErrNotFound)
	}
	return p.Instance()
}

// Embedded says whether containerd runs in this process.
func (s *Store) Embedded() bool { return s.config.Address == "" }

// Snapshotter is the name of the snapshotter used where none is named.
func (s *Store) Snapshotter() string { return s.config.Snapshotter }

// Healthy returns why containerd does not serve (errdefs.ErrUnavailable), or nil.
func (s *Store) Healthy(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("containerd is stopped: %w", errdefs.ErrUnavailable)
	}
	if _, err := s.client.NamespaceService().List(ctx); err != nil {
		return classed{errdefs.ErrUnavailable, fmt.Errorf("containerd does not answer: %w", err)}
	}
	return nil
}

// Close stops the embedded containerd with all plugins, or closes our plugins and
// hangs up. Containers and mounts stay.
func (s *Store) Close() error {
	// The embedded server closes the store too, as one of its plugins.
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	s.cancel()
	s.tasks.Wait()
	s.pulls.wait()
	if s.server != nil {
		s.server.Stop()
		return nil
	}
	if s.Embedded() || s.client == nil {
		return nil
	}
	closePlugins(context.WithoutCancel(s.ctx), s.plugins)
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("hang up on containerd: %w", err)
	}
	return nil
}

// classed gives an error a class (an errdefs value) without changing its text.
type classed struct{ class, err error }

func (c classed) Error() string   { return c.err.Error() }
func (c classed) Unwrap() []error { return []error{c.class, c.err} }
