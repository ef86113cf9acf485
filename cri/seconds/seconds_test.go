// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package seconds

import (
	"math"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for n, want := range map[int64]time.Duration{0: 0, 30: 30 * time.Second, -1: -time.Second} {
		if got := Duration(n); got != want {
			t.Errorf("Duration(%d) = %v, want %v", n, got, want)
		}
	}
	for _, n := range []int64{math.MaxInt64, 18446744074} {
		if got := Duration(n); got < 290*365*24*time.Hour {
			t.Errorf("Duration(%d) = %v: it wrapped around", n, got)
		}
	}
	if got := Duration(math.MinInt64); got > 0 {
		t.Errorf("Duration of the least number is %v", got)
	}
}
