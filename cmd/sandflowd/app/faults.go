// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandflow-cri/sandflow/engine"
)

// faultFile names the environment variable with the path of a file of faults. It is read
// anew at each action, so a test can change it while the daemon runs. It holds faults,
// separated by commas or white space:
//
//	do:network=fail          the action's do fails before it does anything
//	do:network=late          … after it has done everything
//	undo:shim=fail*2         its undo fails, twice, then not any more
//	do:task=hang             it waits until its context ends
//	do:network=sleep500ms    it waits that long, within its context, then goes on
//
// Each injection is noted, as "do:network=fail" on a line, in the file of the same name with
// ".log" behind, before it has its effect.
const faultFile = "SANDFLOW_FAULTS"

var errInjected = errors.New("injected fault")

// faultObservers returns the observer that injects faults; it must be the innermost.
func faultObservers() []engine.Observer {
	path := os.Getenv(faultFile)
	if path == "" {
		return nil
	}
	return []engine.Observer{&faults{path: path, used: map[string]int{}}}
}

type faults struct {
	path string

	mu   sync.Mutex
	text string
	used map[string]int // how often each fault of this text was injected
}

// Around injects the fault that is asked for, if there is one, around an action.
func (f *faults) Around(ctx context.Context, s engine.Span, next func(context.Context) error) error {
	if s.Action == "" || s.Skipped {
		return next(ctx)
	}
	where := "do:" + s.Action
	if s.Down {
		where = "undo:" + s.Action
	}
	kind, err := f.take(where)
	if err != nil {
		return err
	}
	switch {
	case kind == "":
		return next(ctx)
	case kind == "fail":
		return fmt.Errorf("%s: %w", where, errInjected)
	case kind == "late":
		return errors.Join(next(ctx), fmt.Errorf("%s, late: %w", where, errInjected))
	case kind == "hang":
		<-ctx.Done()
		return fmt.Errorf("%s: %w: %w", where, errInjected, ctx.Err())
	}
	d, err := time.ParseDuration(strings.TrimPrefix(kind, "sleep"))
	if err != nil {
		return fmt.Errorf("unknown fault %q: %w", kind, err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return next(ctx)
	}
}

// take finds the fault for an action and uses it up once.
func (f *faults) take(where string) (string, error) {
	raw, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read faults: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(raw) != f.text {
		f.text = string(raw)
		clear(f.used)
	}
	split := func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }
	for _, one := range strings.FieldsFunc(f.text, split) {
		at, kind, _ := strings.Cut(one, "=")
		if at != where {
			continue
		}
		kind, times, limited := strings.Cut(kind, "*")
		n, err := strconv.Atoi(times)
		if limited && err != nil {
			return "", fmt.Errorf("unknown fault %q: %w", one, err)
		}
		if limited && f.used[one] >= n {
			continue
		}
		f.used[one]++
		return kind, f.note(at + "=" + kind)
	}
	return "", nil
}

func (f *faults) note(what string) error {
	file, err := os.OpenFile(f.path+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("note fault: %w", err)
	}
	_, err = fmt.Fprintln(file, what)
	return errors.Join(err, file.Close())
}
