// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the daemon: it knows every other package and only wires them.
package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cmd/internal/logging"
	"github.com/sandflow-cri/sandflow/cmd/internal/version"
)

const usageCode = 2

// Main runs the daemon until a signal ends it, and returns its exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	started := false
	cmd := command(&started)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !started:
		fmt.Fprintf(os.Stderr, "sandflowd: %v\n", err)
		return usageCode
	default:
		fmt.Fprintf(os.Stderr, "sandflowd: %v\n", err)
		return 1
	}
}

func command(started *bool) *cobra.Command {
	var file string
	var o config.Overrides
	cmd := &cobra.Command{
		Use: "sandflowd", Short: "The sandflow CRI runtime", Version: version.String(),
		Long: `sandflowd is a Kubernetes CRI runtime. It runs in the foreground until SIGTERM or
SIGINT; pods go on running without it, and the next start finds them again.

Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage.`,
		Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			*started = true
			cfg, err := config.Load(file, o)
			if err != nil {
				return err
			}
			ctx, err := withLogger(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return Run(ctx, cfg)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file, TOML or JSON (default "+config.DefaultPath+" if it exists)")
	f.StringVar(&o.Root, "root", "", "overrides root: what a reboot keeps")
	f.StringVar(&o.State, "state", "", "overrides state: what a reboot loses; sockets that are not configured follow it")
	f.StringVar(&o.Socket, "socket", "", "overrides cri.socket")
	f.StringVar(&o.AdminSocket, "admin-socket", "", "overrides admin.socket")
	return cmd
}

func withLogger(ctx context.Context, cfg *config.Config) (context.Context, error) {
	l, err := logging.New(logging.Stderr(), cfg.Log.Level, cfg.Log.Format)
	if err != nil {
		return nil, err
	}
	return klog.NewContext(ctx, l), logging.Install(l, cfg.Log.Level)
}
