// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sandflow-cri/sandflow/cmd/internal/admin"
	"github.com/sandflow-cri/sandflow/cmd/internal/config"
)

// Exit codes; they are documented in the help of the root command.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitFound       = 4
)

const rootHelp = `sandflow shows and steers a running sandflowd.

Exit codes:
  0  done
  1  failed: the daemon, or the file, said no
  2  wrong usage
  3  the daemon cannot be reached
  4  "config check" found faults, or "doctor" or "sweep --dry-run" found something`

// socketEnv names the daemon's socket where neither flag does.
const socketEnv = "SANDFLOW_ADMIN_SOCKET"

// callTimeout bounds calls that only read; sweepTimeout those that remove.
const (
	callTimeout  = 15 * time.Second
	sweepTimeout = 10 * time.Minute
)

// exit is an error with its own exit code; a nil err has been reported already.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string {
	if e.err == nil {
		return "found something"
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

// cli is the command with what it stands on, so that tests can give their own.
type cli struct {
	out, errs io.Writer
	now       func() time.Time

	output, socket, config string
	// running is set once flags and arguments are accepted: errors before are wrong usage.
	running bool
}

func newCLI(out, errs io.Writer) *cli { return &cli{out: out, errs: errs, now: time.Now} }

func (c *cli) run(ctx context.Context, args []string) int {
	root := c.root() //nolint:contextcheck // the commands get it from cobra
	root.SetArgs(args)
	root.SetOut(c.out)
	root.SetErr(c.errs)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var e exit
	code := exitFailed
	switch {
	case errors.As(err, &e):
		code = e.code
	case !c.running:
		code = exitUsage
	}
	if e.code == 0 || e.err != nil {
		fmt.Fprintf(c.errs, "sandflow: %v\n", err)
	}
	if code == exitUsage {
		fmt.Fprintln(c.errs, "Run with --help for usage.")
	}
	return code
}

func (c *cli) root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandflow", Short: "Show and steer a running sandflowd", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if c.output != "text" && c.output != "json" {
				return fmt.Errorf("--output is text or json, not %q", c.output)
			}
			c.running = true
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.StringVarP(&c.output, "output", "o", "text", "form of the output: text or json")
	f.StringVar(&c.socket, "admin-socket", "", "socket of the daemon (default: $"+socketEnv+", or admin.socket of the configuration)")
	f.StringVar(&c.config, "config", "", "the daemon's configuration file (default "+config.DefaultPath+")")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(c.flowsCmd(), c.timelineCmd(), c.configCmd(), c.doctorCmd(), c.sweepCmd(), c.versionCmd())
	return cmd
}

// call connects to the daemon and runs f.
func (c *cli) call(ctx context.Context, limit time.Duration, f func(context.Context, admin.AdminClient) error) error {
	socket := c.socket
	if socket == "" && c.config == "" {
		socket = os.Getenv(socketEnv)
	}
	if socket == "" {
		cfg, err := config.Load(c.config, config.Overrides{})
		if err != nil {
			return fmt.Errorf("find the daemon's socket: %w", err)
		}
		socket = cfg.Admin.Socket
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the daemon at %s: %w", socket, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = f(ctx, admin.NewAdminClient(conn))
	if st, ok := status.FromError(err); ok && err != nil {
		if st.Code() == codes.Unavailable {
			return exit{exitUnreachable, fmt.Errorf("the daemon does not answer at %s: %s%s", socket, st.Message(), hint(socket))}
		}
		return errors.New(st.Message())
	}
	return err
}

func hint(socket string) string {
	switch _, err := os.Stat(socket); {
	case errors.Is(err, os.ErrPermission):
		return " (are you root?)"
	case errors.Is(err, os.ErrNotExist):
		return " (there is no such socket: is sandflowd running?)"
	default:
		return ""
	}
}

// show prints an answer: as JSON, or with text.
func (c *cli) show(m proto.Message, text func(io.Writer)) error {
	if c.output != "json" {
		text(c.out)
		return nil
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	// protojson varies its white space on purpose.
	return c.json(json.RawMessage(raw))
}

func (c *cli) json(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	_, err = fmt.Fprintf(c.out, "%s\n", text)
	return err
}
