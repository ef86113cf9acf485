// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubelab runs Kubernetes in a laboratory, on sandflow.
//
//	kubelab node [FLAGS]            show a kubelet on its own run a static pod
//	kubelab cluster [FLAGS]         show what a cluster of two nodes goes through
//	kubelab with [FLAGS] COMMAND…   run a command with a cluster (KUBECONFIG is set)
//	kubelab check [FLAGS]           check what pods get from the runtime, feature by feature
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubelab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: kubelab node|cluster|check|with [FLAGS]")
	}
	verb, args := args[0], args[1:]
	switch {
	case verb == "init" && len(args) == 1: // a node's process 1
		return cluster.Init(args[0])
	case verb == "get" && len(args) == 1: // in a node
		return cluster.Get(ctx, args[0], os.Stdout)
	}
	o := cluster.Options{Out: os.Stdout, FeatureGates: map[string]bool{}}
	f := flag.NewFlagSet("kubelab "+verb, flag.ContinueOnError)
	f.IntVar(&o.Nodes, "nodes", 2, "how many nodes")
	f.Func("runtime", "embedded, attached or containerd", func(s string) error {
		o.Runtime = cluster.Runtime(s)
		return nil
	})
	f.Func("gates", "feature gates: A=true,B=false", func(s string) error { return gates(&o, s) })
	var how checking
	if verb == "check" {
		how.flags(f)
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	switch verb {
	case "node":
		return nodeShow(ctx, o)
	case "cluster":
		return clusterShow(ctx, o)
	case "with":
		return with(ctx, o, f.Args())
	case "check":
		return checks(ctx, o, how)
	default:
		return fmt.Errorf("unknown command %s", verb)
	}
}

func gates(o *cluster.Options, text string) error {
	for _, pair := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("feature gate %s: %w", name, err)
		}
		o.FeatureGates[name] = on
	}
	return nil
}

// with runs a command while there is a cluster.
func with(ctx context.Context, o cluster.Options, command []string) error {
	if len(command) == 0 {
		return errors.New("no command to run with the cluster")
	}
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	return errors.Join(cmd.Run(), c.Close(ctx))
}
