// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/sandflow-cri/sandflow/hack/world"
)

// patience is how long a world may take to become the same again.
const patience = 5 * time.Second

// count writes what is on the node to a file, or compares the node with such a file.
func count(ctx context.Context, args []string) (int, error) {
	verb, args := args[0], args[1:]
	if len(args) == 0 {
		return 2, errors.New("usage: lab count|same FILE [FLAGS]")
	}
	file, args := args[0], args[1:]
	w := world.Where{Processes: true, IgnoreProcesses: []string{"lab"}}
	f := flag.NewFlagSet(verb, flag.ContinueOnError)
	f.StringVar(&w.State, "state", "", "the daemon's state directory")
	f.StringVar(&w.Root, "root", "", "the daemon's root directory")
	f.StringVar(&w.Leases, "leases", "", "the data directory of host-local")
	f.StringVar(&w.CgroupParent, "cgroups", "", "the cgroup path below which cgroups are counted")
	f.StringVar(&w.Containerd, "containerd", "", "the socket of containerd's API")
	if err := f.Parse(args); err != nil {
		return 2, err
	}
	if verb == "count" {
		now, err := world.Count(ctx, w)
		if err != nil {
			return 1, err
		}
		raw, err := json.Marshal(now)
		if err != nil {
			return 1, err
		}
		return 0, os.WriteFile(file, raw, 0o644)
	}
	return same(ctx, file, w)
}

func same(ctx context.Context, file string, w world.Where) (int, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 1, err
	}
	before := world.World{}
	if err := json.Unmarshal(raw, &before); err != nil {
		return 1, fmt.Errorf("could not read %s: %w", file, err)
	}
	diff, err := world.Settle(ctx, w, before, patience)
	if err != nil {
		return 1, err
	}
	now, err := world.Count(ctx, w)
	if err != nil {
		return 1, err
	}
	fmt.Print(world.Table(before, now))
	if diff != "" {
		fmt.Print("\n" + diff)
		return 1, nil
	}
	fmt.Println("  nothing more than before")
	return 0, nil
}
