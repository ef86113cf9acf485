// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/chaos/story"
	"github.com/sandflow-cri/sandflow/hack/harness"
)

// options say what is played.
type options struct {
	seed                  uint64
	first, lives, workers int
	// between is after how many lives the node is looked at while nobody lives.
	between int
}

// result is what came of it.
type result struct {
	story    string // names it
	outcomes string // names what came of every step
	took     time.Duration
	errs     []error
}

// tooMany is with how many lives that went wrong no more begin.
const tooMany = 5

// run plays lives side by side.
func run(ctx context.Context, n *node, o options, say func(string, ...any)) result {
	r := result{story: story.Hash(o.seed, o.first+o.lives)}
	begin := time.Now()
	told := make([]string, o.lives)
	for from := 0; from < o.lives; from += o.between {
		to := min(from+o.between, o.lives)
		errs := n.some(ctx, o, from, to, told)
		if err := n.whole(ctx, patience); err != nil {
			errs = append(errs, fmt.Errorf("after lives %d to %d of seed %d: %w", o.first+from, o.first+to-1, o.seed, err))
		}
		say("%d lives in %s: %s; %s", to, time.Since(begin).Round(time.Second), n.tally.rows("happens"), n.tally.rows("answers"))
		// What the daemon has to say of lives that went well is not needed any more.
		err := n.keepLog(len(errs) > 0, fmt.Sprintf("%s-%d.log", n.daemon.Name, o.first+to))
		if err != nil {
			errs = append(errs, err)
		}
		if r.errs = append(r.errs, errs...); len(r.errs) >= tooMany || ctx.Err() != nil {
			break
		}
	}
	all := []byte(strings.Join(told, "\n"))
	sum := sha256.Sum256(all)
	r.outcomes, r.took = hex.EncodeToString(sum[:8]), time.Since(begin)
	if err := os.WriteFile(filepath.Join(n.reports, n.daemon.Name+".txt"), all, 0o644); err != nil {
		r.errs = append(r.errs, err)
	}
	return r
}

// keepLog begins the daemon's log anew, and keeps it under a name if it is asked to.
func (n *node) keepLog(keep bool, name string) error {
	if keep {
		raw, err := os.ReadFile(n.daemon.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(n.reports, name), raw, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return os.Truncate(n.daemon.Log, 0)
}

// some plays the lives from one to another.
func (n *node) some(ctx context.Context, o options, from, to int, told []string) []error {
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	todo := make(chan int)
	for range o.workers {
		group.Go(func() {
			for i := range todo {
				l := newLife(n, story.New(o.seed, o.first+i))
				err := l.play(ctx)
				told[i] = strings.Join(l.came, "\n")
				if err == nil {
					n.tally.add("lives", "whole")
					continue
				}
				err = l.complain(o.seed, err)
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	for i := from; i < to; i++ {
		mu.Lock()
		enough := len(errs) >= tooMany
		mu.Unlock()
		if enough || ctx.Err() != nil {
			break
		}
		todo <- i
	}
	close(todo)
	group.Wait()
	return errs
}

// complain tells all of a life that went wrong, and removes what it has.
func (l *life) complain(seed uint64, err error) error {
	text := fmt.Errorf(`seed %d, %s: %w
its story is
%swhat came of its steps: %s
the last operations of all lives, before this one:
%s
this life alone: make chaos SEED=%d FIRST=%d LIVES=1 (all of them: the same with the LIVES of this run)`,
		seed, l.name, err, l.story, strings.Join(l.told, ", "), l.n.past, seed, l.story.Index)
	ctx, cancel := context.WithTimeout(l.ctx, rpcTimeout)
	defer cancel()
	_ = l.n.faults.clear(l.name, "")
	if pods, err := l.pods(); err == nil {
		for _, p := range pods {
			_, _ = l.n.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
	}
	return text
}

// documented is how many lives a run has whose figures are put into the documentation.
const documented = 10000

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestChaos plays a story: 300 lives of a seed that stays the same, or what the environment says.
func TestChaos(t *testing.T) {
	o := options{
		seed: uint64(number(t, "SEED", 1)), first: number(t, "FIRST", 0), lives: number(t, "LIVES", 300), //nolint:gosec // not negative
		workers: number(t, "WORKERS", 4), between: number(t, "BETWEEN", 250),
	}
	n := newNode(t, "chaos")
	r := run(t.Context(), n, o, t.Logf)
	for _, err := range r.errs {
		t.Error(err)
	}
	text := n.report(o, r)
	t.Logf("\n%s", text)
	if doc := os.Getenv("SANDFLOW_CHAOS_DOC"); doc != "" && len(r.errs) == 0 && o.first == 0 && o.lives >= documented {
		if err := insert(doc, text); err != nil {
			t.Error(err)
		}
	}
}

// TestSameSeedSameOutcome plays a story twice, one life after the other: the same comes of it, but
// for what is chance (calls that are given up, or disturbed, after some time).
func TestSameSeedSameOutcome(t *testing.T) {
	o := options{seed: 7, lives: number(t, "SAME", 25), workers: 1, between: 25}
	var all [2]result
	for i := range all {
		n := newNode(t, fmt.Sprintf("same%d", i))
		all[i] = run(t.Context(), n, o, t.Logf)
		if err := errors.Join(all[i].errs...); err != nil {
			t.Fatal(err)
		}
	}
	if all[0].story != all[1].story || all[0].outcomes != all[1].outcomes {
		t.Errorf("the same seed gives %+v, then %+v", all[0], all[1])
	}
}

// newNode starts a node, and keeps its log if the test fails.
func newNode(t *testing.T, name string) *node {
	t.Helper()
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make chaos\"")
	}
	level := os.Getenv("SANDFLOW_CHAOS_LOG")
	if level == "" {
		level = "debug"
	}
	n, err := start(t.Context(), l, name, level)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.close(); err != nil {
			t.Errorf("the daemon did not stop in order: %v", err)
		}
		if t.Failed() {
			t.Logf("the daemon's log, what came of every step, and what was left are in %s", n.reports)
		}
	})
	return n
}
