// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/snapshot"
	"github.com/sandflow-cri/sandflow/snapshot/snapshottest"
)

// CASES 46: those who pull one image at a time share one download, whoever leaves.
func TestJoinedPulls(t *testing.T) {
	var blobs atomic.Int32
	gate, waiting := make(chan struct{}), make(chan struct{}, 100)
	reg := snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				blobs.Add(1)
				waiting <- struct{}{}
				<-gate
			}
			h.ServeHTTP(w, r)
		})
	})
	s := snapshottest.New(t)
	ref := reg.Push(t, "a:t", tiny(t, "one"))
	leaver, leave := context.WithCancel(t.Context())
	errs := make(chan error, 9)
	go func() {
		_, err := s.Pull(leaver, ref, nil, snapshot.PullOptions{})
		errs <- err
	}()
	<-waiting
	for range 8 {
		go func() {
			_, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
			errs <- err
		}()
	}
	for snapshot.Waiters(s) < 9 {
		time.Sleep(time.Millisecond)
	}
	leave()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that left: %v", err)
	}
	close(gate)
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := blobs.Load(); n != 2 {
		t.Errorf("%d blobs were fetched, want configuration and layer", n)
	}
}

// A cancelled or stalled pull leaves nothing, and the next one works.
func TestPullEndsEarly(t *testing.T) {
	var stall atomic.Bool
	stalled := make(chan struct{}, 100)
	reg := snapshottest.Serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if stall.Load() && strings.Contains(r.URL.Path, "/blobs/") {
				stalled <- struct{}{}
				<-r.Context().Done()
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	c := snapshottest.Config(snapshottest.Dir(t))
	c.PullProgressTimeout = 300 * time.Millisecond
	s := snapshottest.Open(t, c)
	ref := reg.Push(t, "a:t", tiny(t, "one"))
	stall.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-stalled
		cancel()
	}()
	if _, err := s.Pull(ctx, ref, nil, snapshot.PullOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled pull: %v", err)
	}
	empty(t, s)
	_, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no progress") {
		t.Errorf("stalled pull: %v", err)
	}
	empty(t, s)
	stall.Store(false)
	pull(t, s, ref)
}

// CASES 46: images that share layers, pulled and removed at random, never get into each other's way.
func TestChurn(t *testing.T) {
	reg := snapshottest.Serve(t, nil)
	s := snapshottest.New(t)
	base := snapshottest.Layer(t, snapshottest.File{Name: "base", Body: strings.Repeat("base", 10000)})
	var refs []string
	for i := range 4 {
		tag := "shared:" + strconv.Itoa(i)
		refs = append(refs, reg.Push(t, tag, snapshottest.Image(t, v1.Config{Cmd: []string{tag}}, base, snapshottest.Layer(t, snapshottest.File{Name: tag}))))
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for range 10 {
				ref := refs[r.IntN(len(refs))]
				if _, err := s.Pull(t.Context(), ref, nil, snapshot.PullOptions{}); err != nil {
					t.Errorf("pull %s: %v", ref, err)
				}
				if r.IntN(2) == 0 {
					if err := s.RemoveImage(t.Context(), ref); err != nil {
						t.Errorf("remove %s: %v", ref, err)
					}
				}
			}
		})
	}
	workers.Wait()
	for i, ref := range refs {
		img := pull(t, s, ref)
		key := strconv.Itoa(i)
		if _, err := s.PrepareRootfs(t.Context(), key, snapshot.RootfsOptions{Image: img.ID}); err != nil {
			t.Error(err)
		}
		if err := errors.Join(s.RemoveRootfs(t.Context(), key), s.RemoveImage(t.Context(), ref)); err != nil {
			t.Error(err)
		}
	}
	snapshot.Collect(t.Context(), t, s)
	empty(t, s)
}

// CASES 50: a pull that fills the disk says so, gives the space back, and harms no later pull.
func TestDiskFull(t *testing.T) {
	snapshottest.NeedRoot(t)
	reg := snapshottest.Serve(t, nil)
	dir := snapshottest.Dir(t)
	c := snapshottest.Config(dir)
	if err := os.Mkdir(c.Root, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("sandflow-test", c.Root, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(c.Root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := snapshottest.Open(t, c)
	big := reg.Push(t, "big:t", snapshottest.Image(t, v1.Config{}, snapshottest.Layer(t, snapshottest.File{Name: "big", Body: strings.Repeat("x", 10<<20)})))
	if _, err := s.Pull(t.Context(), big, nil, snapshot.PullOptions{}); !errors.Is(err, unix.ENOSPC) && (err == nil || !strings.Contains(err.Error(), "no space left")) {
		t.Errorf("pull: %v", err)
	}
	empty(t, s)
	pull(t, s, reg.Push(t, "small:t", tiny(t, "small")))
	if err := unix.Mount("", c.Root, "", unix.MS_REMOUNT, "size=64m"); err != nil {
		t.Fatal(err)
	}
	pull(t, s, big)
}
