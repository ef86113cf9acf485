// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is memory in KiB.
type usage struct{ rss, pss int }

func (u usage) mib() string {
	return fmt.Sprintf("%.1f | %.1f", float64(u.rss)/1024, float64(u.pss)/1024)
}

func usageOf(pid int) (usage, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return usage{}, fmt.Errorf("could not read the memory of process %d: %w", pid, err)
	}
	var u usage
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.Atoi(f[1])
		switch {
		case err != nil: // the heading
		case f[0] == "Rss:":
			u.rss = n
		case f[0] == "Pss:":
			u.pss = n
		}
	}
	return u, nil
}

// memory prints what the daemons need at rest, and each pod on top of its own processes.
func memory(ctx context.Context, peers []*peer, n int) error {
	fmt.Printf("\n### Memory (MiB)\n\n| | RSS | PSS |\n|---|--:|--:|\n")
	for _, p := range peers {
		fmt.Printf("| %s at rest, no pod | %s |\n", p.name, p.idle.mib())
	}
	for _, p := range peers {
		per, err := p.perPod(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Printf("| %s for each pod, of %d (shim and pause; without the workload and the daemon) | %s |\n", p.name, n, per.mib())
	}
	return nil
}

// perPod starts n pods and measures the processes that came with them, but for the workload.
func (p *peer) perPod(ctx context.Context, n int) (usage, error) {
	before := processes()
	pods := make([]*pod, 0, n)
	var failed error
	for range n {
		one, err := p.up(ctx)
		if err != nil {
			failed = err
			break
		}
		pods = append(pods, one)
	}
	time.Sleep(2 * time.Second) // at rest
	var sum usage
	for pid, comm := range processes() {
		if _, old := before[pid]; old || comm == "sleep" {
			continue
		}
		if u, err := usageOf(pid); err == nil { // else: it has just ended
			sum.rss, sum.pss = sum.rss+u.rss, sum.pss+u.pss
		}
	}
	for _, one := range pods {
		failed = errors.Join(failed, p.down(ctx, one))
	}
	return usage{rss: sum.rss / n, pss: sum.pss / n}, failed
}

// processes are the names of all processes, by PID.
func processes() map[int]string {
	out := map[int]string{}
	found, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return out
	}
	for _, path := range found {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		raw, err2 := os.ReadFile(path)
		if err == nil && err2 == nil {
			out[pid] = strings.TrimSpace(string(raw))
		}
	}
	return out
}
