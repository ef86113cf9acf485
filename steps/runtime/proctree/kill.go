// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctree kills a process with everything it started.
package proctree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// process is what /proc/<pid>/stat tells.
type process struct {
	pid, parent, session int
	dead                 bool
}

// Kill kills an exec'd process and everything it started: its descendants
// and its session, which the OCI runtime has made for it. It repeats until none
// is left, since a process may have forked meanwhile. exited is closed when
// pid itself has been reaped, after which its number may be another's.
func Kill(ctx context.Context, pid int, exited <-chan struct{}) {
	if pid <= 1 {
		return
	}
	known := map[int]bool{pid: true}
	for round := range 50 {
		procs, err := processes()
		if err != nil {
			log.G(ctx).WithError(err).Error("kill exec: list processes")
			return
		}
		victims := treeOf(pid, procs, known, isClosed(exited))
		if len(victims) == 0 {
			return
		}
		if round == 0 { // stopped, they can start no others
			signalAll(victims, unix.SIGSTOP)
			if procs, err = processes(); err == nil {
				victims = treeOf(pid, procs, known, isClosed(exited))
			}
		}
		signalAll(victims, unix.SIGKILL)
		time.Sleep(10 * time.Millisecond)
	}
	log.G(ctx).Errorf("kill exec: processes started by %d do not go", pid)
}

// treeOf gives the living processes that belong to the exec. known keeps who
// was seen to, by the process that started it: parents may be gone when their children are not.
func treeOf(root int, procs []process, known map[int]bool, rootGone bool) []int {
	for again := true; again; {
		again = false
		for _, p := range procs {
			if !known[p.pid] && (known[p.parent] || p.session == root) {
				known[p.pid], again = true, true
			}
		}
	}
	var out []int
	alive := map[int]bool{}
	for _, p := range procs {
		alive[p.pid] = true
		if known[p.pid] && !p.dead && (p.pid != root || !rootGone) {
			out = append(out, p.pid)
		}
	}
	for pid := range known { // its number may be given to another process
		if !alive[pid] && pid != root {
			delete(known, pid)
		}
	}
	return out
}

func signalAll(pids []int, sig unix.Signal) {
	for _, pid := range pids {
		_ = unix.Kill(pid, sig)
	}
}

// processes lists those that this shim can see.
func processes() ([]process, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []process
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if p, err := readProcess(pid); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	p := process{pid: pid}
	var state byte
	var group int
	// The name in parentheses may hold anything.
	if _, err := fmt.Sscanf(string(b[bytes.LastIndexByte(b, ')')+1:]), " %c %d %d %d", &state, &p.parent, &group, &p.session); err != nil {
		return p, err
	}
	p.dead = state == 'Z' || state == 'X'
	return p, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
