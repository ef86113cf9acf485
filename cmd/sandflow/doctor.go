// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
)

func (c *cli) doctorCmd() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "Look for what is not as it should be", Args: cobra.NoArgs,
		Long: `Look at the node and list what belongs to no pod or container, which of these are
stuck on their way down and why, pods whose shim is gone or does not answer, and
what keeps the daemon from running pods. It changes nothing. The exit code is 4 if
anything is found.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), callTimeout, func(ctx context.Context, a admin.AdminClient) error {
				r, err := a.Doctor(ctx, &admin.DoctorRequest{All: all})
				if err != nil {
					return err
				}
				if err := c.show(r, func(w io.Writer) { c.writeDoctor(w, r, all) }); err != nil {
					return err
				}
				if !healthy(r) {
					return exit{code: exitFound}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "list also what belongs to pods and containers")
	return cmd
}

func healthy(r *admin.DoctorResponse) bool {
	for _, c := range r.GetConditions() {
		if !c.GetReady() {
			return false
		}
	}
	for _, k := range r.GetKinds() {
		if k.GetNobodys() > 0 {
			return false
		}
	}
	return len(r.GetStuck()) == 0 && len(r.GetUnwell()) == 0 && r.GetIncomplete() == ""
}

func (c *cli) writeDoctor(out io.Writer, r *admin.DoctorResponse, all bool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONDITION\tSTATUS\tREASON")
	for _, k := range r.GetConditions() {
		state := "ready"
		if !k.GetReady() {
			state = "not ready"
		}
		reason := k.GetReason()
		if k.GetMessage() != "" {
			reason += ": " + oneLine(k.GetMessage())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", k.GetType(), state, reason)
	}
	_ = w.Flush()
	if len(r.GetStuck()) > 0 {
		fmt.Fprintln(out)
		writeStuck(out, r.GetStuck(), c.now())
	}
	if len(r.GetUnwell()) > 0 {
		fmt.Fprintln(out)
		fmt.Fprintln(w, "UNWELL\tID\tNAME\tWHY")
		for _, u := range r.GetUnwell() {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", u.GetWorkflow(), short(u.GetId()), orDash(u.GetName()), oneLine(u.GetWhy()))
		}
		_ = w.Flush()
	}
	fmt.Fprintln(out)
	if r.GetIncomplete() != "" {
		fmt.Fprintf(out, "not everything could be looked at: %s\n\n", oneLine(r.GetIncomplete()))
	}
	fmt.Fprintln(w, "KIND\tTOTAL\tNOBODY'S")
	for _, k := range r.GetKinds() {
		fmt.Fprintf(w, "%s\t%d\t%d\n", k.GetName(), k.GetTotal(), k.GetNobodys())
	}
	_ = w.Flush()
	if len(r.GetThings()) == 0 {
		fmt.Fprintln(out, "\nnothing is there that belongs to nobody")
		return
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "KIND\tNAME\tBELONGS TO")
	for _, t := range r.GetThings() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", t.GetKind(), t.GetName(), owner(t))
	}
	_ = w.Flush()
	if all {
		return
	}
	fmt.Fprintln(out, "\n\"sandflow sweep\" removes what the actions know how to find; \"sandflow sweep --dry-run\" tells which that is")
}

func owner(t *admin.Thing) string {
	switch {
	case t.GetNobodys() && t.GetRecord() != "":
		return "nobody; " + t.GetRecord() + " " + short(t.GetId()) + " has been taken down"
	case t.GetNobodys() && t.GetId() != "":
		return "nobody; no record of " + short(t.GetId())
	case t.GetNobodys():
		return "nobody"
	default:
		return t.GetRecord() + " " + short(t.GetId())
	}
}
