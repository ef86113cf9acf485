// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"testing"
	"time"
)

// What took long to measure is kept long, what took no time is measured again.
func TestUsageIsKeptForAsLongAsItIsWorth(t *testing.T) {
	begun := time.Unix(1000, 0)
	for _, c := range []struct{ took, least, kept time.Duration }{
		{time.Millisecond, 0, 20 * time.Millisecond},
		{2 * time.Second, 0, 40 * time.Second},
		{time.Millisecond, 10 * time.Second, 10 * time.Second},
		{2 * time.Second, 10 * time.Second, 40 * time.Second},
	} {
		cache := &usageCache{}
		if _, ok := cache.get(begun); ok {
			t.Error("something is kept that was not measured")
		}
		cache.put(FS{Usage: Usage{Bytes: 7}}, begun, begun.Add(c.took), c.least)
		if fs, ok := cache.get(begun.Add(c.kept - 1)); !ok || fs.Bytes != 7 {
			t.Errorf("measured in %s: %v, %v before the end of %s", c.took, fs, ok, c.kept)
		}
		if _, ok := cache.get(begun.Add(c.kept)); ok {
			t.Errorf("measured in %s: it is kept after %s", c.took, c.kept)
		}
	}
}

// Nothing is remembered of what is not there.
func TestUsageOfLayersIsForgotten(t *testing.T) {
	var l layerUse
	a, b := l.of("a"), l.of("b")
	if a == b || l.of("a") != a {
		t.Error("caches are mixed up")
	}
	l.forget("a")
	l.forget("never")
	if len(l.byKey) != 1 {
		t.Errorf("%d are left", len(l.byKey))
	}
}
