// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command stuck measures how long lists and statuses take on a node with many containers
// while one shim, one OCI runtime and one CNI plugin are frozen (SIGSTOP) and other pods start
// and stop, and how long it takes to remove what is frozen. It prints tables in Markdown, and
// ends with 1 if sandflow exceeds a bound.
//
//	lab run stuck [-pods N] [-containers IN-EACH] [-rounds N] [-only sandflow|containerd]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
)

const (
	// mostRead is what a list or a status may take.
	mostRead = 100 * time.Millisecond
	// mostRemoval is what the removal of a pod may take whose shim or runtime is frozen.
	mostRemoval = 30 * time.Second
)

type options struct {
	pods, containers, rounds int
	only                     string
}

func main() {
	var o options
	flag.IntVar(&o.pods, "pods", 100, "pods that stand")
	flag.IntVar(&o.containers, "containers", 5, "containers in each")
	flag.IntVar(&o.rounds, "rounds", 200, "calls of each kind, with nothing frozen and with all")
	flag.StringVar(&o.only, "only", "", "measure only sandflow or containerd")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		fmt.Fprintln(os.Stderr, "stuck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	l, ok := harness.Here()
	if !ok {
		return errors.New("not in a laboratory: run \"make bench-stuck\"")
	}
	registry, err := images.Serve(ctx, l.Images())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	control := filepath.Join(l.Dir, "control")
	last := fmt.Sprintf(`{"type": "failcni", "control": %q}`, control)
	if err := errors.Join(registry.WriteHosts(l.CertsDir()), l.WriteNetwork(l.ConfDir(), last)); err != nil {
		return err
	}
	frozen, err := frozenRuntime(l)
	if err != nil {
		return err
	}
	fmt.Printf("%d CPUs; %d pods with %d containers each\n", runtime.NumCPU(), o.pods, o.containers)
	for _, s := range []*side{
		{name: "sandflow", bounded: true, make: l.Sandflow, extra: fmt.Sprintf(sandflowExtra, frozen)},
		{name: "containerd", make: l.Upstream, extra: fmt.Sprintf(upstreamHandler, frozen)},
	} {
		if o.only != "" && o.only != s.name {
			continue
		}
		s.lab, s.control, s.cost = l, control, map[string]time.Duration{}
		if err := s.measure(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// The metrics' address has profiles too.
const sandflowExtra = `[runtime.handlers.frozen]
binary = %q
[metrics]
address = "127.0.0.1:9091"
`

const upstreamHandler = `[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.frozen]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.frozen.options]
    BinaryName = %q
`

// frozenRuntime writes an OCI runtime that freezes where it would make a container named
// "freeze"; everything else it does.
func frozenRuntime(l *harness.Lab) (string, error) {
	path := filepath.Join(l.Dir, "frozen-runc")
	text := fmt.Sprintf(`#!/bin/sh
bundle=
previous=
for word; do
	[ "$previous" = --bundle ] && bundle=$word
	previous=$word
done
case " $* " in
*" create "*) grep -q FREEZE=1 "$bundle/config.json" && kill -STOP $$ ;;
esac
exec %q "$@"
`, l.Bin("runc"))
	return path, os.WriteFile(path, []byte(text), 0o755) //nolint:gosec // a program
}
