// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seconds turns the whole seconds of CRI requests into durations.
package seconds

import (
	"math"
	"time"
)

// Duration is n seconds. What a time.Duration cannot hold is the longest or the
// shortest that it can, so that a huge grace period is not taken for a short one.
func Duration(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	return time.Duration(max(-most, min(n, most))) * time.Second
}
