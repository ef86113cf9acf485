// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
)

func (c *cli) timelineCmd() *cobra.Command {
	return &cobra.Command{
		Use: "timeline [SANDBOX]", Short: "Show the steps of a pod's life",
		Long: `Show the flows of a pod and of its containers: each action with its step, when it
started within its flow, how long it took, how it ended, and a bar on the scale
of the whole flow. "#" marks doing, "<" undoing; undoing because the flow failed
is marked "rollback".

SANDBOX is an ID, an unambiguous beginning of one, a pod's name, or
NAMESPACE/NAME. A container's ID works too. Without it, the pods, containers and
pulls that the daemon remembers are listed, newest first.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: c.completeSubjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), callTimeout, func(ctx context.Context, a admin.AdminClient) error {
				if len(args) == 0 {
					r, err := a.Timelines(ctx, &admin.TimelinesRequest{})
					if err != nil {
						return err
					}
					return c.show(r, func(w io.Writer) { writeSubjects(w, r.GetSubjects(), c.now()) })
				}
				r, err := a.Timeline(ctx, &admin.TimelineRequest{Subject: args[0]})
				if err != nil {
					return err
				}
				return c.show(r, func(w io.Writer) { writeTimeline(w, r.GetSubjects()) })
			})
		},
	}
}

func (c *cli) completeSubjects(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		_ = c.call(cmd.Context(), time.Second, func(ctx context.Context, a admin.AdminClient) error {
			r, err := a.Timelines(ctx, &admin.TimelinesRequest{})
			for _, s := range r.GetSubjects() {
				names = append(names, short(s.GetId())+"\t"+s.GetWorkflow()+" "+s.GetName())
			}
			return err
		})
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func writeSubjects(out io.Writer, subjects []*admin.Subject, now time.Time) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WORKFLOW\tID\tNAME\tLAST FLOW\tAGO\tTOOK\tOUTCOME")
	for _, s := range subjects {
		flows := s.GetFlows()
		if len(flows) == 0 {
			continue
		}
		last := flows[len(flows)-1]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.GetWorkflow(), short(s.GetId()), orDash(s.GetName()), last.GetFlow(),
			age(now.Sub(last.GetSpan().GetStart().AsTime())), millis(last.GetSpan().GetDuration().AsDuration()), last.GetSpan().GetOutcome())
	}
	_ = w.Flush()
}

func writeTimeline(w io.Writer, subjects []*admin.Subject) {
	for i, s := range subjects {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s  %s\n", s.GetWorkflow(), short(s.GetId()), s.GetName())
		for _, f := range s.GetFlows() {
			writeFlow(w, f)
		}
	}
}

const barWidth = 40

func writeFlow(out io.Writer, f *admin.FlowRun) {
	span := f.GetSpan()
	fmt.Fprintf(out, "  %s  %s  %s  %s\n", title(f), span.GetStart().AsTime().UTC().Format("2006-01-02 15:04:05.000"),
		millis(span.GetDuration().AsDuration()), span.GetOutcome())
	if e := span.GetError(); e != "" {
		fmt.Fprintf(out, "    error: %s\n", oneLine(e))
	}
	if len(f.GetActions()) == 0 {
		return
	}
	begin, whole := extent(f)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "  \tSTEP\tSTART\tTOOK\tOUTCOME\t  "+strings.Repeat(" ", barWidth+2)+"  ACTION")
	for _, a := range f.GetActions() {
		at := a.GetSpan().GetStart().AsTime().Sub(begin)
		took := millis(a.GetSpan().GetDuration().AsDuration())
		fmt.Fprintf(w, "  \t%s\t%s\t%s\t%s\t  |%s|  %s\n", strconv.Itoa(int(a.GetStep())+1), "+"+millis(at), took, a.GetSpan().GetOutcome(),
			actionBar(a, at, whole), label(a))
	}
	_ = w.Flush()
}

// title names a flow; going back down after a failure is no second try of it.
func title(f *admin.FlowRun) string {
	if a := f.GetActions(); len(a) > 0 && a[0].GetRollback() {
		return "rollback of " + f.GetFlow()
	}
	return f.GetFlow()
}

// extent is when the flow began and how long the bars must reach: a flow that
// is still running has no duration of its own that would hold its actions.
func extent(f *admin.FlowRun) (time.Time, time.Duration) {
	begin := f.GetSpan().GetStart().AsTime()
	whole := f.GetSpan().GetDuration().AsDuration()
	for _, a := range f.GetActions() {
		end := a.GetSpan().GetStart().AsTime().Sub(begin) + a.GetSpan().GetDuration().AsDuration()
		whole = max(whole, end)
	}
	return begin, whole
}

func actionBar(a *admin.ActionRun, at, whole time.Duration) string {
	if a.GetSpan().GetOutcome() == "skipped" {
		return strings.Repeat(" ", barWidth)
	}
	return bar(at, a.GetSpan().GetDuration().AsDuration(), whole, a.GetDown())
}

// bar draws [at, at+took) on the scale of whole; even the shortest action gets one mark.
func bar(at, took, whole time.Duration, down bool) string {
	if whole <= 0 {
		whole = 1
	}
	scale := func(d time.Duration) int {
		return min(barWidth, max(0, int(float64(d)/float64(whole)*barWidth+0.5)))
	}
	from := min(scale(at), barWidth-1)
	to := max(scale(at+took), from+1)
	mark := "#"
	if down {
		mark = "<"
	}
	return strings.Repeat(" ", from) + strings.Repeat(mark, to-from) + strings.Repeat(" ", barWidth-to)
}

func label(a *admin.ActionRun) string {
	var b strings.Builder
	if a.GetDown() {
		b.WriteString("undo ")
	}
	b.WriteString(a.GetAction())
	if a.GetRollback() {
		b.WriteString(" (rollback)")
	}
	if e := a.GetSpan().GetError(); e != "" {
		b.WriteString(": " + oneLine(e))
	}
	return b.String()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// millis writes a duration in milliseconds, or in seconds when it is long.
func millis(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}
