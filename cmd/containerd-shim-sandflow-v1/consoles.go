// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync/atomic"
	"time"
)

// collectPause is how long terminals are gathered before their descriptors are given back.
const collectPause = time.Second

// consoles gives the descriptors of exec'd terminals back. containerd's exec closes
// a terminal's master for no process that failed to start, and late for others: it
// leaves that to the garbage collector, which an idle shim may not run for minutes.
type consoles struct{ pending atomic.Bool }

// collect runs the garbage collector in a moment, once for all who ask until then.
func (c *consoles) collect() {
	if c.pending.CompareAndSwap(false, true) {
		time.AfterFunc(collectPause, func() {
			c.pending.Store(false)
			runtime.GC()
		})
	}
}
