// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// settle is how long after a first event the directory is read: files are
	// often written in several steps.
	settle = 50 * time.Millisecond
	// pollEvery is how often the directory is looked at when it cannot be watched.
	pollEvery = 5 * time.Second
)

var errWatchEnded = errors.New("the watch of the CNI configurations has ended")

// Run watches the configuration directory until ctx ends or Close is called.
// What it sees is logged; Status and Attach look at the directory themselves
// too, so that nothing depends on a notification. It returns ctx's error, or
// nil after Close.
func (n *Network) Run(ctx context.Context) error {
	n.current(ctx)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch CNI configurations, polling instead", "dir", n.cfg.ConfDir, "every", pollEvery)
		return n.poll(ctx)
	}
	watched := watch{w: w, dir: n.cfg.ConfDir}
	err = n.follow(ctx, &watched)
	return errors.Join(err, w.Close())
}

func (n *Network) poll(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.closed:
			return nil
		case <-tick.C:
			n.current(ctx)
		}
	}
}

func (n *Network) follow(ctx context.Context, w *watch) error {
	log := klog.FromContext(ctx)
	quiet := time.NewTimer(0) // read at once after the first watch is set
	defer quiet.Stop()
	pending := true
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.closed:
			return nil
		case ev, ok := <-w.w.Events:
			if !ok {
				return errWatchEnded
			}
			if !pending && w.concerns(ev.Name) {
				pending = true
				quiet.Reset(settle)
			}
		case err, ok := <-w.w.Errors:
			if !ok {
				return errWatchEnded
			}
			log.Error(err, "Watch CNI configurations") // an overflow: read all the same
			pending = true
			quiet.Reset(settle)
		case <-quiet.C:
			pending = false
			if err := w.renew(); err != nil {
				log.Error(err, "Cannot watch CNI configurations, trying again", "after", pollEvery)
				pending = true
				quiet.Reset(pollEvery)
			}
			n.current(ctx)
		}
	}
}

// watch keeps the directory watched, or while there is none, the nearest
// parent that exists. The parent stays watched, to see the directory replaced.
type watch struct {
	w    *fsnotify.Watcher
	dir  string
	real string // dir with links resolved, when it was last there
}

// concerns tells whether an event is about the directory, what is in it, or
// one of its parents. The parents may be busy places.
func (w *watch) concerns(name string) bool {
	return filepath.Dir(name) == w.real || name == w.real || strings.HasPrefix(w.dir+"/", name+"/")
}

// renew watches what there is now.
func (w *watch) renew() error {
	want := map[string]bool{}
	dir, err := filepath.EvalSymlinks(w.dir)
	if err == nil {
		w.real = dir
		want[dir] = true
	}
	want[nearestParent(w.dir)] = true
	for _, old := range w.w.WatchList() {
		// Watches follow the inode, not the name: a directory made anew needs a new watch.
		if err := w.w.Remove(old); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			return fmt.Errorf("stop watching %s: %w", old, err)
		}
	}
	for path := range want {
		if err := w.w.Add(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("watch %s: %w", path, err)
		}
	}
	return nil
}

func nearestParent(dir string) string {
	for dir != "/" {
		dir = filepath.Dir(dir)
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			break
		}
	}
	return dir
}
