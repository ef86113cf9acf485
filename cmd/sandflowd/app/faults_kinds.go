// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandflow-cri/sandflow/cmd/internal/assembly"
)

// poll is how often it is looked whether a fault has been taken back.
const poll = 20 * time.Millisecond

// effect does what a fault of that kind does around body.
func (f *faults) effect(ctx context.Context, one fault, body func(context.Context) error) error {
	where := one.at
	switch one.kind {
	case "fail":
		return fmt.Errorf("%s: %w", where, errInjected)
	case "late":
		return errors.Join(body(ctx), fmt.Errorf("%s, late: %w", where, errInjected))
	case "skip":
		return body(assembly.Skipping(ctx))
	case "hang":
		if err := f.wait(ctx, ctx.Done(), where); err != nil {
			return err
		}
		return body(ctx)
	case "stall":
		if err := f.wait(ctx, nil, where); err != nil {
			return err
		}
		return body(ctx)
	case "panic":
		panic(where + ": " + errInjected.Error())
	case "kill", "killafter", "killshim", "killshimafter":
		return f.death(ctx, one, body)
	}
	d, err := time.ParseDuration(strings.TrimPrefix(one.kind, "sleep"))
	if err != nil {
		return fmt.Errorf("unknown fault %q: %w", one.kind, err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return body(ctx)
	}
}

// death kills somebody around body.
func (f *faults) death(ctx context.Context, one fault, body func(context.Context) error) error {
	switch one.kind {
	case "kill":
		die()
	case "killafter":
		_ = body(ctx) // nobody will hear of it
		die()
	case "killshim":
		return errors.Join(killShims(one.pod), body(ctx))
	}
	return errors.Join(body(ctx), killShims(one.pod))
}

// wait returns when the fault at a point has been taken back, or an error when done is closed.
func (f *faults) wait(ctx context.Context, done <-chan struct{}, where string) error {
	for {
		all, err := f.read()
		if err != nil {
			return err
		}
		select {
		case <-done: // also if it has been taken back since
			return fmt.Errorf("%s: %w: %w", where, errInjected, ctx.Err())
		default:
		}
		if !slices.ContainsFunc(all, func(one string) bool { return strings.HasPrefix(one, where+"=") }) {
			return nil
		}
		select {
		case <-done:
		case <-time.After(poll):
		}
	}
}

// die ends the daemon as a crash does: nothing of it runs on.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// killShims kills the shims that this daemon has started; they work in its pods' directories. With
// a pod's ID only that one's is meant.
func killShims(pod string) error {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range found {
		raw, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(raw), "containerd-shim-sandflow-v1\x00-namespace") || !strings.Contains(string(raw), pod) {
			continue // gone meanwhile, or another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill shim %d: %w", pid, err)
		}
	}
	return nil
}
