// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
)

func (c *cli) flowsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "flows", Short: "Show the flows with their counters, and what is stuck", Args: cobra.NoArgs,
		Long: `Show each flow: its limit, how many may wait (queue), how many are in flight
and waiting now, the most that were in flight at once (peak), how many were
refused since the start, and how many pods or containers are stuck on their
way down, with the reason and the time of the next try.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), callTimeout, func(ctx context.Context, a admin.AdminClient) error {
				r, err := a.Flows(ctx, &admin.FlowsRequest{})
				if err != nil {
					return err
				}
				return c.show(r, func(w io.Writer) { writeFlows(w, r, c.now()) })
			})
		},
	}
	cmd.AddCommand(c.setLimitCmd())
	return cmd
}

func (c *cli) setLimitCmd() *cobra.Command {
	limit := -1
	cmd := &cobra.Command{
		Use: "set WORKFLOW.FLOW --limit N", Short: "Change how many of a flow may be in flight",
		Long: `Change how many of a flow may be in flight at once, until the daemon's next
start; 0 is unlimited. What is in flight already is not stopped.`,
		Example: "  sandflow flows set sandbox.create --limit 50",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: c.completeFlows,
		RunE: func(cmd *cobra.Command, args []string) error {
			workflow, flow, ok := strings.Cut(args[0], ".")
			switch {
			case !ok:
				return exit{exitUsage, fmt.Errorf("%q is not of the form WORKFLOW.FLOW", args[0])}
			case limit < 0 || limit > 1<<30:
				return exit{exitUsage, errors.New("--limit must be given as 0 (unlimited) or more")}
			}
			return c.call(cmd.Context(), callTimeout, func(ctx context.Context, a admin.AdminClient) error {
				r, err := a.SetLimit(ctx, &admin.SetLimitRequest{Workflow: workflow, Flow: flow, Limit: int32(limit)}) //nolint:gosec // bounded above
				if err != nil {
					return err
				}
				return c.show(r, func(w io.Writer) {
					fmt.Fprintf(w, "%s: limit %s, was %s\n", args[0], limitText(int32(limit)), limitText(r.GetBefore())) //nolint:gosec // bounded above
				})
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", -1, "the new limit; 0 is unlimited")
	return cmd
}

func (c *cli) completeFlows(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		_ = c.call(cmd.Context(), time.Second, func(ctx context.Context, a admin.AdminClient) error {
			r, err := a.Flows(ctx, &admin.FlowsRequest{})
			for _, f := range r.GetFlows() {
				names = append(names, f.GetWorkflow()+"."+f.GetName())
			}
			return err
		})
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func limitText(n int32) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(int(n))
}

func writeFlows(out io.Writer, r *admin.FlowsResponse, now time.Time) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKFLOW\tFLOW\tLIMIT\tQUEUE\tIN FLIGHT\tWAITING\tPEAK\tREFUSED\tSTUCK")
	for _, f := range r.GetFlows() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", f.GetWorkflow(), f.GetName(), limitText(f.GetLimit()),
			f.GetQueue(), f.GetInFlight(), f.GetWaiting(), f.GetPeak(), f.GetRefused(), f.GetStuck())
	}
	_ = w.Flush()
	if len(r.GetStuck()) > 0 {
		fmt.Fprintln(out)
		writeStuck(out, r.GetStuck(), now)
	}
}

func writeStuck(out io.Writer, stuck []*admin.Stuck, now time.Time) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STUCK\tID\tNAME\tAT\tFOR\tTRIES\tNEXT TRY\tERROR")
	for _, s := range stuck {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.GetWorkflow(), short(s.GetId()), orDash(s.GetName()),
			orDash(s.GetStation()), age(now.Sub(s.GetSince().AsTime())), s.GetAttempts(), nextTry(s, now), stuckError(s))
	}
	_ = w.Flush()
}

func nextTry(s *admin.Stuck, now time.Time) string {
	switch in := s.GetRetry().AsTime().Sub(now); {
	case s.GetRetry() == nil:
		return "-"
	case in <= 0:
		return "now"
	default:
		return "in " + age(in)
	}
}

// stuckError keeps an error on the one line of its row.
func stuckError(s *admin.Stuck) string {
	text := strings.Join(strings.Fields(s.GetError()), " ")
	if s.GetDamaged() {
		return strings.TrimSpace("the record cannot be read: " + text)
	}
	return orDash(text)
}

// short is enough of an ID to tell it from others, as crictl shows it.
func short(id string) string {
	const n = 13
	if len(id) == 64 && !strings.ContainsAny(id, "/:.") {
		return id[:n]
	}
	return id
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// age rounds a time span to what is worth reading.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Hour).String(), "0m0s")
	default:
		return strconv.Itoa(int(d.Hours()/24)) + "d"
	}
}
