// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"

	"github.com/sandflow-cri/sandflow/hack/kube/check"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// checking are the flags of checks.
type checking struct {
	check.Options
	times int
}

func (c *checking) flags(f *flag.FlagSet) {
	f.Func("run", "the checks whose names match this expression", func(s string) error {
		var err error
		c.Run, err = regexp.Compile(s)
		return err
	})
	f.IntVar(&c.Parallel, "parallel", 0, "how many checks at a time")
	f.IntVar(&c.times, "times", 1, "how many times in a row")
	f.StringVar(&c.Document, "document", "", "a Markdown file whose table of checks gets the results as a column")
	f.StringVar(&c.Column, "column", "", "the name of that column (default: the runtime's)")
}

// checks starts a cluster and runs the checks on it.
func checks(ctx context.Context, o cluster.Options, how checking) (err error) {
	gates := check.Gates()
	for name, on := range o.FeatureGates {
		gates[name] = on
	}
	o.FeatureGates = gates
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	how.Out = os.Stdout
	if how.Column == "" {
		how.Column = string(cmp.Or(o.Runtime, cluster.Embedded))
	}
	for range how.times {
		failed, err := check.Run(ctx, c, how.Options)
		if err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("%d checks failed", failed)
		}
	}
	return nil
}
