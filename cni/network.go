// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cni connects pods to networks through CNI plugins.
//
// It reads the network configurations of a directory, chooses which of them
// pods get, and runs their plugins with libcni. What an attachment was made
// with is frozen by Prepare, so that Detach works with the very same
// configuration after the directory has changed, after a crash that lost the
// result of ADD, and after a reboot that took the network namespace away.
package cni

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"k8s.io/klog/v2"
)

// Values of Config.IPPreference.
const (
	PreferIPv4 = "ipv4"
	PreferIPv6 = "ipv6"
)

const (
	defaultTimeout = 2 * time.Minute
	// statusTimeout bounds the STATUS verb: kubelet's Status must not hang with a plugin.
	statusTimeout = 5 * time.Second
)

// ErrNoNetwork means that there is no usable network configuration. It is an
// errdefs.ErrUnavailable.
var ErrNoNetwork = fmt.Errorf("no network configuration: %w", errdefs.ErrUnavailable)

// ErrNoAddress means that all plugins succeeded and none gave an address. It
// is an errdefs.ErrFailedPrecondition.
var ErrNoAddress = fmt.Errorf("the plugins gave no address: %w", errdefs.ErrFailedPrecondition)

// Config says where networks are configured and how they are used.
type Config struct {
	// ConfDir holds the network configurations: *.conflist, *.conf and *.json.
	ConfDir string
	// BinDirs are searched for plugin programs, in order.
	BinDirs []string
	// CacheDir is libcni's own cache of results.
	CacheDir string
	// MaxConf is how many configurations pods get, in order of file name; 0 is all of them.
	MaxConf int
	// IPPreference orders a pod's addresses: "" as the plugins gave them,
	// PreferIPv4 or PreferIPv6.
	IPPreference string
	// Timeout bounds one Attach, Detach or GC; default 2 minutes.
	Timeout time.Duration
}

// Network attaches pods. All methods may be called from several goroutines.
type Network struct {
	cfg Config

	// mu guards the fields below and is held while files are read, never while
	// a plugin runs.
	mu        sync.Mutex
	loaded    *loaded
	detaching map[string]bool // pods whose Detach has not succeeded yet

	closeOnce sync.Once
	closed    chan struct{}
}

// New checks the configuration and returns a Network. The directories need
// not exist yet.
func New(c Config) (*Network, error) {
	if !filepath.IsAbs(c.ConfDir) || !filepath.IsAbs(c.CacheDir) {
		return nil, fmt.Errorf("CNI directories must be absolute paths, not %q and %q: %w", c.ConfDir, c.CacheDir, errdefs.ErrInvalidArgument)
	}
	if len(c.BinDirs) == 0 {
		return nil, fmt.Errorf("no directory of CNI plugins given: %w", errdefs.ErrInvalidArgument)
	}
	switch c.IPPreference {
	case "", PreferIPv4, PreferIPv6:
	default:
		return nil, fmt.Errorf("IP preference %q is none of \"\", %q, %q: %w", c.IPPreference, PreferIPv4, PreferIPv6, errdefs.ErrInvalidArgument)
	}
	if c.MaxConf < 0 {
		return nil, fmt.Errorf("number of network configurations %d is negative: %w", c.MaxConf, errdefs.ErrInvalidArgument)
	}
	if c.Timeout <= 0 {
		c.Timeout = defaultTimeout
	}
	return &Network{cfg: c, closed: make(chan struct{}), detaching: map[string]bool{}}, nil
}

// Close ends Run. It does not wait for plugins in flight: those belong to their callers.
func (n *Network) Close() { n.closeOnce.Do(func() { close(n.closed) }) }

// lib returns a libcni with our own cache directory. onAdd, if not nil, sees
// the raw result of every ADD.
func (n *Network) lib(onAdd func([]byte)) *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(n.cfg.BinDirs, n.cfg.CacheDir, &pluginExec{onAdd: onAdd})
}

// current returns the configurations as they are on disk now.
func (n *Network) current(ctx context.Context) *loaded {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := fingerprint(n.cfg.ConfDir)
	if n.loaded != nil && n.loaded.fresh(now, n.cfg.BinDirs) {
		return n.loaded
	}
	before := n.loaded
	n.loaded = load(n.cfg, now)
	n.loaded.log(klog.FromContext(ctx), before)
	return n.loaded
}
