// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
	"github.com/sandflow-cri/sandflow/cmd/internal/assembly"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
	"github.com/sandflow-cri/sandflow/cmd/internal/version"
)

func (c *cli) configCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Print the default configuration, or check a file", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "default", Short: "Print the built-in default, with comments", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				if c.output == "json" {
					return c.json(config.Default())
				}
				_, err := c.out.Write(config.DefaultText())
				return err
			},
		},
		&cobra.Command{
			Use: "check FILE", Short: "Check a configuration file", Args: cobra.ExactArgs(1),
			Long: `Check a configuration file, TOML or JSON, the way the daemon does when it starts:
keys, values, and the flows against the actions of this build. Files that it names
and that are not on this node are warned of: shim, OCI runtimes, networks. Nothing
is started. Exit code 4 if anything is wrong; warnings alone do not count.`,
			RunE: func(cmd *cobra.Command, args []string) error { return c.check(cmd.Context(), args[0]) },
		},
	)
	return cmd
}

// verdict is the JSON form of a check.
type verdict struct {
	File     string  `json:"file"`
	OK       bool    `json:"ok"`
	Faults   []fault `json:"faults"`
	Warnings []fault `json:"warnings"`
}

type fault struct {
	Line    int      `json:"line,omitempty"`
	Key     string   `json:"key,omitempty"`
	Message string   `json:"message"`
	Known   []string `json:"known,omitempty"`
}

func (c *cli) check(ctx context.Context, file string) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("check the configuration: %w", err)
	}
	cfg, err := config.Load(file, config.Overrides{})
	if err == nil {
		err = assembly.Check(ctx, cfg)
	}
	v := verdict{File: file, OK: err == nil, Faults: faults(err), Warnings: []fault{}}
	var missing []*config.Error
	if err == nil {
		missing = cfg.Missing()
	}
	for _, m := range missing {
		v.Warnings = append(v.Warnings, faults(m)...)
	}
	switch {
	case c.output == "json":
		if werr := c.json(v); werr != nil {
			return werr
		}
	case err == nil:
		fmt.Fprintf(c.out, "%s: good\n", file)
		for _, m := range missing {
			fmt.Fprintf(c.out, "warning: %s\n", oneLine(m.Error()))
		}
	default:
		fmt.Fprintln(c.out, err)
	}
	if err != nil {
		return exit{code: exitFound}
	}
	return nil
}

// faults takes joined errors apart.
func faults(err error) []fault {
	out := []fault{}
	var e *config.Error
	joined, many := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
	case many:
		for _, one := range joined.Unwrap() {
			out = append(out, faults(one)...)
		}
	case errors.As(err, &e):
		out = append(out, fault{e.Line, e.Path, e.Msg, e.Known})
	default:
		out = append(out, fault{Message: err.Error()})
	}
	return out
}

func (c *cli) sweepCmd() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use: "sweep", Short: "Remove what no pod or container owns", Args: cobra.NoArgs,
		Long: `Remove what this daemon's actions made and no record knows. It runs at each start
too. With --dry-run it is only listed. The exit code is 4 if anything is left over
afterwards: all of it in a dry run, otherwise what the actions do not sweep.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), sweepTimeout, func(ctx context.Context, a admin.AdminClient) error {
				r, err := a.Sweep(ctx, &admin.SweepRequest{DryRun: dry})
				if err != nil {
					return err
				}
				if err := c.show(r, func(w io.Writer) { writeFound(w, r.GetFound(), dry) }); err != nil {
					return err
				}
				return sweepExit(r.GetFound(), dry)
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only list")
	return cmd
}

func sweepExit(found []*admin.Found, dry bool) error {
	failed, left := 0, dry && len(found) > 0
	for _, f := range found {
		if f.GetError() != "" {
			failed++
		}
		left = left || f.GetUnswept()
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d leftovers could not be removed", failed, len(found))
	case left:
		return exit{code: exitFound}
	default:
		return nil
	}
}

func writeFound(out io.Writer, found []*admin.Found, dry bool) {
	if len(found) == 0 {
		fmt.Fprintln(out, "nothing is left over")
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KIND\tNAME\tRESULT")
	for _, f := range found {
		result := "removed"
		switch {
		case f.GetError() != "":
			result = oneLine(f.GetError())
		case f.GetUnswept():
			result = "left over, but not swept: yours to remove"
		case dry:
			result = "left over: a sweep removes it"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", f.GetKind(), f.GetName(), result)
	}
	_ = w.Flush()
}

func (c *cli) versionCmd() *cobra.Command {
	var client bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version of this command and of the daemon", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if client {
				return c.showVersions(nil)
			}
			return c.call(cmd.Context(), callTimeout, func(ctx context.Context, a admin.AdminClient) error {
				r, err := a.Info(ctx, &admin.InfoRequest{})
				if err != nil {
					_ = c.showVersions(nil)
					return err
				}
				return c.showVersions(r)
			})
		},
	}
	cmd.Flags().BoolVar(&client, "client", false, "only this command's; do not ask the daemon")
	return cmd
}

func (c *cli) showVersions(d *admin.InfoResponse) error {
	if c.output == "json" {
		v := map[string]any{"client": map[string]any{"version": version.String(), "go_version": runtime.Version()}}
		if d != nil {
			v["daemon"] = map[string]any{
				"version": d.GetVersion(), "go_version": d.GetGoVersion(), "pid": d.GetPid(), "started": d.GetStarted().AsTime(),
				"root": d.GetRoot(), "state": d.GetState(), "config_file": d.GetConfigFile(),
			}
		}
		return c.json(v)
	}
	fmt.Fprintf(c.out, "sandflow   %s (%s)\n", version.String(), runtime.Version())
	if d == nil {
		return nil
	}
	fmt.Fprintf(c.out, "sandflowd  %s (%s), pid %d, up %s\n", d.GetVersion(), d.GetGoVersion(), d.GetPid(), age(c.now().Sub(d.GetStarted().AsTime())))
	fmt.Fprintf(c.out, "  root     %s\n  state    %s\n  config   %s\n", d.GetRoot(), d.GetState(), orDefault(d.GetConfigFile()))
	return nil
}

func orDefault(file string) string {
	if file == "" {
		return "(built-in default)"
	}
	return file
}
