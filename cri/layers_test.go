// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandflow-cri/sandflow/snapshot"
)

// slowLayers measure as long as they are told to; the size is the number of the measurement.
type slowLayers struct {
	took     time.Duration
	measured int
	err      error
}

func (s *slowLayers) RootfsUsage(ctx context.Context, _ string) (snapshot.Usage, error) {
	select {
	case <-time.After(s.took):
		s.measured++
		return snapshot.Usage{Bytes: int64(s.measured)}, s.err
	case <-ctx.Done():
		return snapshot.Usage{}, ctx.Err()
	}
}

func (*slowLayers) ImageFS(context.Context) (snapshot.FS, error) { return snapshot.FS{}, nil }

// TestListsDoNotWaitForLayers: a layer with millions of files holds up no list for longer than a
// moment, however many there are; what is known is told meanwhile.
func TestListsDoNotWaitForLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowLayers{took: time.Second}
		l := newLayerUse(slow)
		defer l.close()
		look := func(n int) (known int) {
			t.Helper()
			start := time.Now()
			list := l.list(t.Context(), layerWait)
			for i := range n {
				if _, ok := list(fmt.Sprint(i)); ok {
					known++
				}
			}
			if took := time.Since(start); took > layerWait {
				t.Errorf("a list took %s", took)
			}
			return known
		}
		if known := look(10); known != 0 {
			t.Errorf("%d layers are known at once", known)
		}
		time.Sleep(10 * time.Second)
		if known := look(10); known != 10 || slow.measured != 10 {
			t.Errorf("%d layers are known, %d were measured", known, slow.measured)
		}
		time.Sleep(layerAge + time.Second)
		slow.took = time.Hour // it hangs
		if known := look(10); known != 10 {
			t.Errorf("%d layers are known while they are measured again", known)
		}
		if s, ok := l.list(t.Context(), layerWait)("0"); !ok || s.Bytes == 0 || time.Since(s.at) < layerAge {
			t.Errorf("size %+v, %v: want the one before", s, ok)
		}
	})
}

func TestLayerNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowLayers{took: time.Second}
		l := newLayerUse(slow)
		defer l.close()
		if s, err := l.now(t.Context(), "1"); err != nil || s.Bytes != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		if s, ok := l.list(t.Context(), layerWait)("1"); !ok || s.Bytes != 1 {
			t.Errorf("the list does not know what was measured: %+v", s)
		}
		l.forget("1")
		slow.err = errors.New("it has gone")
		if _, err := l.now(t.Context(), "1"); !errors.Is(err, slow.err) {
			t.Errorf("error %v", err)
		}
		if _, ok := l.list(t.Context(), layerWait)("1"); ok {
			t.Error("one that has gone is known")
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.known) != 0 {
			t.Errorf("kept: %v", l.known)
		}
	})
}
