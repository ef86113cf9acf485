// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"sync"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// totals keeps the CPU time of containers that are gone, so that a pod's never falls.
type totals struct {
	mu   sync.Mutex // guards pods; held for arithmetic only
	pods map[string]*total
}

type total struct {
	gone uint64            // nanoseconds
	last map[string]uint64 // by container
}

// add takes the present counters of a pod's containers and gives the pod's.
func (t *totals) add(pod string, now map[string]uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods == nil {
		t.pods = map[string]*total{}
	}
	p := t.pods[pod]
	if p == nil {
		p = &total{last: map[string]uint64{}}
		t.pods[pod] = p
	}
	for id, used := range now {
		if used < p.last[id] {
			p.gone += p.last[id]
		}
		p.last[id] = used
	}
	p.fold(now)
	all := p.gone
	for _, used := range p.last {
		all += used
	}
	return all
}

// maxLast bounds the containers that are remembered one by one.
const maxLast = 256

// fold forgets which containers are gone, when they are many. Not at once: one
// that could not be read may be back the next time.
func (p *total) fold(present map[string]uint64) {
	if len(p.last) <= maxLast {
		return
	}
	for id, used := range p.last {
		if _, ok := present[id]; !ok {
			p.gone += used
			delete(p.last, id)
		}
	}
}

func (t *totals) forget(pod string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pods, pod)
}

func (r *Reader) sum(pod string, members []Member) *Usage {
	now := r.now().UnixNano()
	out := &Usage{
		CPU: &runtime.CpuUsage{Timestamp: now},
		Memory: &runtime.MemoryUsage{
			Timestamp: now, WorkingSetBytes: value(0), UsageBytes: value(0), RssBytes: value(0), PageFaults: value(0), MajorPageFaults: value(0),
		},
	}
	used := map[string]uint64{}
	limited := true
	for _, m := range members {
		if m.Usage == nil {
			continue
		}
		used[m.ID] = m.Usage.CPU.GetUsageCoreNanoSeconds().GetValue()
		limited = limited && m.Usage.Memory.GetAvailableBytes() != nil
		addMemory(out.Memory, m.Usage.Memory)
		out.Swap = addSwap(out.Swap, m.Usage.Swap)
		out.parts = append(out.parts, m.Usage)
	}
	if !limited {
		out.Memory.AvailableBytes = nil
	}
	out.CPU.UsageCoreNanoSeconds = value(r.pods.add(pod, used))
	return out
}

func addMemory(to, m *runtime.MemoryUsage) {
	to.WorkingSetBytes.Value += m.GetWorkingSetBytes().GetValue()
	to.UsageBytes.Value += m.GetUsageBytes().GetValue()
	to.RssBytes.Value += m.GetRssBytes().GetValue()
	to.PageFaults.Value += m.GetPageFaults().GetValue()
	to.MajorPageFaults.Value += m.GetMajorPageFaults().GetValue()
	if m.GetAvailableBytes() != nil {
		to.AvailableBytes = value(to.GetAvailableBytes().GetValue() + m.GetAvailableBytes().GetValue())
	}
}

// addSwap is nil as long as nobody knows about swap.
func addSwap(to, s *runtime.SwapUsage) *runtime.SwapUsage {
	if s == nil {
		return to
	}
	if to == nil {
		to = &runtime.SwapUsage{Timestamp: s.GetTimestamp(), SwapUsageBytes: value(0)}
	}
	to.SwapUsageBytes.Value += s.GetSwapUsageBytes().GetValue()
	if s.GetSwapAvailableBytes() != nil {
		to.SwapAvailableBytes = value(to.GetSwapAvailableBytes().GetValue() + s.GetSwapAvailableBytes().GetValue())
	}
	return to
}
