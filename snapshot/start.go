// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"k8s.io/klog/v2"
)

const (
	storePluginID = "store"
	// maxSocketPath is what containerd accepts, and ".ttrpc" is added to it.
	maxSocketPath = 104
	ttrpcSuffix   = ".ttrpc"
)

// storeKey is where Start leaves the unfinished store for its plugin. A context
// value and not a variable, so that one process can hold several stores.
type storeKey struct{}

func init() {
	registry.Register(&plugin.Registration{
		Type: StorePlugin,
		ID:   storePluginID,
		Requires: []plugin.Type{
			plugins.EventPlugin, plugins.ServicePlugin, plugins.LeasePlugin, plugins.SandboxStorePlugin,
			plugins.TransferPlugin, plugins.MountManagerPlugin, plugins.MetadataPlugin,
		},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			s, ok := ic.Context.Value(storeKey{}).(*Store)
			if !ok {
				return nil, fmt.Errorf("the store is only made by snapshot.Start: %w", plugin.ErrSkipPlugin)
			}
			s.plugins = ic.Plugins()
			if s.client == nil {
				if err := s.connectInside(ic); err != nil {
					return nil, err
				}
			}
			return s, s.open()
		},
	})
}

// connectInside makes the client of the containerd whose plugin graph ic belongs to.
func (s *Store) connectInside(ic *plugin.InitContext) error {
	c, err := containerd.New("", containerd.WithDefaultNamespace(s.config.Namespace),
		containerd.WithDefaultPlatform(platforms.Default()), containerd.WithInMemoryServices(ic))
	if err != nil {
		return fmt.Errorf("make the client of the embedded containerd: %w", err)
	}
	db, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return err
	}
	s.client = c
	s.db, _ = db.(*metadata.DB)
	return nil
}

// startEmbedded runs containerd's plugin graph, with ours in it, in this process.
func (s *Store) startEmbedded(ctx context.Context) error {
	cfg, err := s.serverConfig()
	if err != nil {
		return err
	}
	if err := makeParents(ctx, cfg.State); err != nil {
		return err
	}
	if err := server.CreateTopLevelDirectories(cfg); err != nil {
		return fmt.Errorf("make containerd's directories: %w", err)
	}
	if s.config.Path != "" {
		// containerd looks for foreign shims in the PATH of this process.
		if err := os.Setenv("PATH", s.config.Path+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
			return fmt.Errorf("set PATH: %w", err)
		}
	}
	srv, err := server.New(ctx, cfg)
	if err != nil {
		closePlugins(ctx, s.plugins)
		return fmt.Errorf("start the embedded containerd: %w", err)
	}
	s.server = srv
	if err := srv.Start(ctx); err != nil {
		return fmt.Errorf("serve containerd's API on %s: %w", s.config.Socket, err)
	}
	for _, socket := range []string{s.config.Socket, s.config.Socket + ttrpcSuffix} {
		if err := os.Chmod(socket, 0o600); err != nil {
			return fmt.Errorf("close containerd's socket to others: %w", err)
		}
	}
	// Not before: plugins are being added until then.
	s.collect(s.Context(ctx))
	s.tasks.Go(func() { s.collectLater(s.ctx) })
	srv.Wait()
	return nil
}

// serverConfig is containerd's configuration; what the user wrote in Plugins wins.
func (s *Store) serverConfig() (*srvconfig.Config, error) {
	c := s.config
	if n := len(c.Socket + ttrpcSuffix); n > maxSocketPath {
		return nil, fmt.Errorf("containerd's socket path %s%s is %d bytes long, the most is %d: %w",
			c.Socket, ttrpcSuffix, n, maxSocketPath, errdefs.ErrInvalidArgument)
	}
	tables := map[string]any{
		"io.containerd.server.v1.grpc":  map[string]any{"address": c.Socket},
		"io.containerd.server.v1.ttrpc": map[string]any{"address": c.Socket + ttrpcSuffix},
		"io.containerd.shim.v1.manager": map[string]any{"env": []string{"PATH=" + s.searchPath()}},
	}
	for uri, table := range c.Plugins {
		own, isMap := tables[uri].(map[string]any)
		given, ok := table.(map[string]any)
		if !isMap || !ok {
			tables[uri] = table
			continue
		}
		maps.Copy(own, given)
	}
	required := append([]string{
		string(StorePlugin) + "." + storePluginID,
		"io.containerd.snapshotter.v1." + c.Snapshotter,
	}, c.RequiredPlugins...)
	slices.Sort(required)
	return &srvconfig.Config{
		Version:         version.ConfigVersion,
		Root:            c.Root,
		State:           c.State,
		Plugins:         tables,
		RequiredPlugins: slices.Compact(required),
		// It registers with the process's metrics, so there could be one store only.
		DisabledPlugins: []string{"io.containerd.metrics.v1.grpc-prometheus"},
	}, nil
}

func (s *Store) searchPath() string {
	if s.config.Path == "" {
		return os.Getenv("PATH")
	}
	return s.config.Path + string(os.PathListSeparator) + os.Getenv("PATH")
}

// makeParents makes the directories above dir so that users of other user
// namespaces may pass through, and warns of existing ones that stop them.
func makeParents(ctx context.Context, dir string) error {
	const pass = 0o711
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, pass); err != nil {
		return fmt.Errorf("make the parents of %s: %w", dir, err)
	}
	for p := parent; p != string(filepath.Separator) && p != "."; p = filepath.Dir(p) {
		st, err := os.Stat(p)
		if err != nil {
			return fmt.Errorf("look at a parent of %s: %w", dir, err)
		}
		if st.Mode()&1 == 0 {
			klog.FromContext(ctx).Info("Pods with a user namespace cannot pass a directory above the state directory", "dir", p, "mode", st.Mode())
		}
	}
	return nil
}

// startAttached connects to an existing containerd and initialises our own
// plugins as that containerd would its own.
func (s *Store) startAttached(ctx context.Context) error {
	// The client would try for ten seconds and then not say why.
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.config.Address)
	if err != nil {
		return classed{errdefs.ErrUnavailable, fmt.Errorf("connect to containerd at %s: %w", s.config.Address, err)}
	}
	if err := conn.Close(); err != nil {
		return err
	}
	c, err := containerd.New(s.config.Address, containerd.WithDefaultNamespace(s.config.Namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd at %s: %w", s.config.Address, err)
	}
	s.client = c
	set := plugin.NewPluginSet()
	s.plugins = set
	required := map[string]bool{string(StorePlugin) + "." + storePluginID: true}
	for _, uri := range s.config.RequiredPlugins {
		required[uri] = true
	}
	decode := &srvconfig.Config{Plugins: s.config.Plugins}
	foreign := func(r *plugin.Registration) bool { return !strings.HasPrefix(string(r.Type), "io.sandflow.") }
	for _, r := range registry.Graph(foreign) {
		uri := r.URI()
		ic := plugin.NewContext(ctx, set, map[string]string{
			plugins.PropertyRootDir:     filepath.Join(s.config.Root, uri),
			plugins.PropertyStateDir:    filepath.Join(s.config.State, uri),
			plugins.PropertyGRPCAddress: s.config.Address,
		})
		ic.RegisterReadiness = func() func() { return func() {} }
		if r.Config != nil {
			if ic.Config, err = decode.Decode(ctx, uri, r.Config); err != nil {
				return fmt.Errorf("read the configuration of plugin %s: %w", uri, err)
			}
		}
		result := r.Init(ic)
		if err := set.Add(result); err != nil {
			return err
		}
		if err := result.Err(); err != nil {
			if required[uri] {
				return fmt.Errorf("load required plugin %s: %w", uri, err)
			}
			if !plugin.IsSkipPlugin(err) {
				klog.FromContext(ctx).Error(err, "Plugin failed to load", "plugin", uri)
			}
		}
		delete(required, uri)
	}
	if left := slices.Sorted(maps.Keys(required)); len(left) > 0 {
		// Those of containerd itself are the other containerd's business.
		left = slices.DeleteFunc(left, func(uri string) bool { return !strings.HasPrefix(uri, "io.sandflow.") })
		if len(left) > 0 {
			return fmt.Errorf("required plugins %s are not built in: %w", strings.Join(left, ", "), errdefs.ErrNotFound)
		}
	}
	return nil
}

// closePlugins closes in the reverse order of initialisation, as containerd does.
func closePlugins(ctx context.Context, set *plugin.Set) {
	if set == nil {
		return
	}
	for _, p := range slices.Backward(set.GetAll()) {
		instance, err := p.Instance()
		if err != nil {
			continue
		}
		if c, ok := instance.(io.Closer); ok {
			if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
				klog.FromContext(ctx).Error(err, "Could not close a plugin", "plugin", p.Registration.URI())
			}
		}
	}
}
