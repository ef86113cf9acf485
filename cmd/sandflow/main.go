// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sandflow shows and steers a running sandflowd: its flows and their
// limits, the timeline of each pod, what is left over; and it checks
// configuration files.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := newCLI(os.Stdout, os.Stderr).run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
