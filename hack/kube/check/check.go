// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package check looks at everything that a Kubernetes user gets from a container runtime, on
// a running cluster: one check a feature. A check makes what it needs in a namespace of its
// own, looks at what really happened in the containers and on the node, and removes it again.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// limit is how long one check may take.
const limit = 3 * time.Minute

// Options say what to check, and how.
type Options struct {
	// Run selects checks by their names; nil: all of them.
	Run *regexp.Regexp
	// Parallel is how many checks run at a time; 0: four. Those that disturb the others run
	// alone, at the end.
	Parallel int
	// Out gets a line for each check.
	Out io.Writer
	// Document is a Markdown file that gets the results as a column of its table of checks;
	// empty: none. Column is the column's name.
	Document, Column string
}

// Gates are the feature gates that the checks need beyond the cluster's own choice.
func Gates() map[string]bool { return map[string]bool{"ContainerStopSignals": true} }

// check is one feature.
type check struct {
	// name is what the report calls it.
	name string
	// run returns what is wrong.
	run func(ctx context.Context, e *env) error
	// alone: it disturbs others, or would be disturbed.
	alone bool
}

// all lists every check, in the order of the report.
func all() []check {
	var out []check
	for _, area := range [][]check{
		workloads, network, identity, logs, rotation, streams, metrics, probes, lifecycle, restarting, pulling,
		resources, resizing, namespaces, handlers, users, privileges, volumes, mounts, disturbances,
	} {
		out = append(out, area...)
	}
	return out
}

// result is how a check ended.
type result struct {
	name string
	took time.Duration
	err  error
}

func (r result) String() string {
	word := "pass"
	if r.err != nil {
		word = "FAIL"
	}
	line := fmt.Sprintf("%s %7d ms  %s", word, r.took.Milliseconds(), r.name)
	if r.err != nil {
		line += "\n    " + strings.ReplaceAll(strings.TrimSpace(r.err.Error()), "\n", "\n    ")
	}
	return line
}

// report prints results as they come.
type report struct {
	mu     sync.Mutex
	out    io.Writer
	all    []result
	failed int
}

func (p *report) add(r result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, r)
	if r.err != nil {
		p.failed++
	}
	fmt.Fprintln(p.out, r)
}

// Run runs the checks on a cluster and returns how many failed. An error means that the
// checks could not be run at all.
func Run(ctx context.Context, c *cluster.Cluster, o Options) (failed int, err error) {
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	s, err := newSuite(c)
	if err != nil {
		return 0, err
	}
	// What a client says about watches that end is not for the report.
	ctx = klog.NewContext(ctx, logr.Discard())
	begin := time.Now()
	p := &report{out: o.Out}
	together, alone := selected(o.Run)
	var g errgroup.Group
	g.SetLimit(o.Parallel)
	for _, c := range together {
		g.Go(func() error {
			p.add(s.one(ctx, c))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, c := range alone {
		p.add(s.one(ctx, c))
	}
	p.add(timed("Clean-up: every namespace of the checks goes", func() error { return s.gone(ctx) }))
	fmt.Fprintf(o.Out, "%d checks, %d passed, %d failed, %.0f s\n",
		len(p.all), len(p.all)-p.failed, p.failed, time.Since(begin).Seconds())
	if o.Document != "" {
		if err := document(o.Document, o.Column, p.all); err != nil {
			return p.failed, fmt.Errorf("could not write the table of checks: %w", err)
		}
	}
	return p.failed, ctx.Err()
}

func selected(run *regexp.Regexp) (together, alone []check) {
	for _, c := range all() {
		switch {
		case run != nil && !run.MatchString(c.name):
		case c.alone:
			alone = append(alone, c)
		default:
			together = append(together, c)
		}
	}
	return together, alone
}

// one runs a check in a namespace of its own.
func (s *suite) one(ctx context.Context, c check) result {
	return timed(c.name, func() error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		e, err := s.open(ctx, c.name)
		if err != nil {
			return err
		}
		if err = c.run(ctx, e); err != nil {
			err = errors.Join(err, e.story(ctx))
		}
		return errors.Join(err, e.close(ctx))
	})
}

func timed(name string, run func() error) result {
	begin := time.Now()
	err := run()
	return result{name: name, took: time.Since(begin), err: err}
}
