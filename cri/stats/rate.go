// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"sync"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// spacing is the least time between two samples kept, so that a client in a
	// hurry does not push out those that rates are made from.
	spacing = 100 * time.Millisecond
	// window is the age of the sample that a rate is preferably made from.
	window = time.Second
	// keep is how long samples are kept for, besides the last two.
	keep = 30 * time.Second
)

// sample is a cumulative counter at a time, both in nanoseconds. The time is monotonic: that
// of the usage jumps when the clock is set, and would make no rates or wrong ones.
type sample struct {
	at   int64
	used uint64
}

// rates makes CPU rates from the samples of earlier calls, whoever made them. So a
// second client in quick turn sees the same rate, not a false zero.
type rates struct {
	mu      sync.Mutex // guards history; held for arithmetic only
	history map[string][]sample
}

// fill sets usage_nano_cores, unless no earlier sample is far enough back. at is when the
// usage was read, from any fixed moment.
func (r *rates) fill(id string, u *runtime.CpuUsage, at time.Duration) {
	if u == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.history == nil {
		r.history = map[string][]sample{}
	}
	now := sample{int64(at), u.GetUsageCoreNanoSeconds().GetValue()}
	past := r.history[id]
	if n := len(past); n > 0 && now.used < past[n-1].used {
		if now.at-past[n-1].at < int64(window) {
			return // read before the last one, by another client at the same time
		}
		past = nil // a new cgroup by the old name
	}
	if base, ok := base(past, now.at); ok && now.used >= base.used {
		elapsed := uint64(now.at - base.at)
		u.UsageNanoCores = value(uint64(float64(now.used-base.used) / float64(elapsed) * float64(time.Second)))
	}
	r.history[id] = remember(past, now)
}

// base is the newest sample at least window old, else the oldest at least spacing old.
func base(past []sample, now int64) (sample, bool) {
	for i := len(past) - 1; i >= 0; i-- {
		if now-past[i].at >= int64(window) {
			return past[i], true
		}
	}
	if len(past) > 0 && now-past[0].at >= int64(spacing) {
		return past[0], true
	}
	return sample{}, false
}

func remember(past []sample, now sample) []sample {
	n := len(past)
	if n > 0 && now.at-past[n-1].at < int64(spacing) {
		return past
	}
	past = append(past, now)
	for len(past) > 2 && now.at-past[1].at > int64(window) && (now.at-past[0].at > int64(keep) || len(past) > maxSamples) {
		past = past[1:]
	}
	return past
}

// maxSamples bounds the history of one container.
const maxSamples = 32

func (r *rates) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.history, id)
}
