// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures sandflowd and an upstream containerd side by side in one
// laboratory: the same machine, network, image, OCI runtime and requests, in alternating
// rounds, so that what else the machine does falls on both. It prints tables in Markdown.
//
//	lab run bench [-n PODS] [-c AT-A-TIME] [-density PODS]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

type options struct {
	n, c, density, rounds int
	only                  string
}

func main() {
	var o options
	flag.IntVar(&o.n, "n", 40, "pods one after another, for each runtime")
	flag.IntVar(&o.c, "c", 8, "pods at a time in the parallel rounds")
	flag.IntVar(&o.density, "density", 20, "pods that stand at once when memory is measured")
	flag.IntVar(&o.rounds, "rounds", 4, "rounds into which the pods are divided")
	flag.StringVar(&o.only, "only", "", "measure only sandflow or containerd")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	l, ok := harness.Here()
	if !ok {
		return errors.New("not in a laboratory: run \"make bench\"")
	}
	registry, err := images.Serve(ctx, l.Images())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	if err := errors.Join(registry.WriteHosts(l.CertsDir()), l.WriteNetwork(l.ConfDir())); err != nil {
		return err
	}
	peers, err := peers(l, o.only)
	if err != nil {
		return err
	}
	for _, p := range peers {
		if err := p.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.stop()) }()
	}
	fmt.Printf("%d CPUs, kernel %s; p50 of %d pods for each runtime, in %d alternating rounds\n", runtime.NumCPU(), kernel(), o.n, o.rounds)
	for _, c := range []int{1, o.c} {
		if err := compare(ctx, peers, o, c); err != nil {
			return err
		}
	}
	return memory(ctx, peers, o.density)
}

// peers are the runtimes to measure.
func peers(l *harness.Lab, only string) ([]*peer, error) {
	var out []*peer
	for name, build := range map[string]func(harness.Options) (*harness.Daemon, error){"sandflow": l.Sandflow, "containerd": l.Upstream} {
		if only != "" && only != name {
			continue
		}
		d, err := build(harness.Options{LogLevel: "info"})
		if err != nil {
			return nil, err
		}
		p := &peer{name: name, daemon: d, cgroup: l.CgroupParent}
		if name == "sandflow" {
			out = append([]*peer{p}, out...)
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

// compare runs rounds of pod lives, c at a time, and prints the table.
func compare(ctx context.Context, peers []*peer, o options, c int) error {
	for _, p := range peers {
		p.times = times{}
	}
	for range o.rounds {
		for _, p := range peers {
			if err := p.lives(ctx, o.n/o.rounds, c); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	fmt.Printf("\n### %d at a time (ms)\n\n", c)
	head, rule := "| call |", "|---|"
	for _, p := range peers {
		head, rule = head+" "+p.name+" p50 | p90 |", rule+"--:|--:|"
	}
	fmt.Println(head + " ratio of p50 |\n" + rule + "--:|")
	for _, call := range order {
		var b strings.Builder
		for _, p := range peers {
			fmt.Fprintf(&b, " %.1f | %.1f |", p.times.percentile(call, 50), p.times.percentile(call, 90))
		}
		fmt.Printf("| %s |%s %s |\n", call, b.String(), ratio(peers, call))
	}
	return nil
}

func ratio(peers []*peer, call string) string {
	if len(peers) != 2 {
		return ""
	}
	return fmt.Sprintf("%.2f", peers[0].times.percentile(call, 50)/peers[1].times.percentile(call, 50))
}

func kernel() string {
	raw, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(raw))
}
