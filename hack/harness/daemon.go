// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/world"
)

// commLength is how much of a program's name the kernel keeps.
const commLength = 15

// Daemon is a CRI runtime in a laboratory. The same value can be started, stopped and
// started again; it keeps its directories.
type Daemon struct {
	// Name is for messages.
	Name string
	// Command is its command line.
	Command []string
	// Env is added to the environment.
	Env []string
	// Socket is where it serves CRI, Containerd where containerd's API is.
	Socket, Containerd string
	// NRI is where it serves plugins. Those to launch are looked for in Root + ".nri".
	NRI string
	// Root and State are its directories.
	Root, State string
	// Log is the file that it logs to.
	Log string

	lab     *Lab
	program string
	cmd     *exec.Cmd
	done    chan error
	exited  chan struct{}
}

// Start starts the daemon and waits until it answers.
func (d *Daemon) Start(ctx context.Context) error {
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// It lives until it is stopped.
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), d.Command[0], d.Command[1:]...)
	d.cmd.Env = append(os.Environ(), d.Env...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = errors.Join(d.cmd.Start(), log.Close())
	if err != nil {
		return fmt.Errorf("could not start %s: %w", d.Name, err)
	}
	d.done, d.exited = make(chan error, 1), make(chan struct{})
	go func(cmd *exec.Cmd, done chan<- error, exited chan<- struct{}) {
		done <- cmd.Wait()
		close(exited)
	}(d.cmd, d.done, d.exited)
	if err := d.wait(ctx); err != nil {
		return errors.Join(err, d.Kill())
	}
	return nil
}

// wait waits until the daemon answers on its CRI socket.
func (d *Daemon) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := Dial(d.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for {
		_, err := c.Version(ctx, &runtime.VersionRequest{})
		if err == nil {
			return nil
		}
		select {
		case exit := <-d.done:
			d.done <- exit
			return fmt.Errorf("%s ended at its start (%w); the end of its log:\n%s", d.Name, exit, d.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer at %s (%w); the end of its log:\n%s", d.Name, d.Socket, err, d.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// PID is the process ID of the running daemon.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Exited is closed when the daemon that was started last has ended, by whatever cause.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// Stop ends the daemon in order and waits for it.
func (d *Daemon) Stop() error { return d.end(syscall.SIGTERM) }

// Kill ends the daemon at once and waits for it.
func (d *Daemon) Kill() error { return d.end(syscall.SIGKILL) }

func (d *Daemon) end(sig syscall.Signal) error {
	if d.cmd == nil {
		return nil
	}
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	defer func() { d.cmd = nil }()
	select {
	case err := <-d.done:
		var exit *exec.ExitError
		if errors.As(err, &exit) && sig == syscall.SIGKILL {
			return nil
		}
		return err
	case <-time.After(time.Minute):
		err := fmt.Errorf("%s did not end within a minute of %s", d.Name, sig)
		return errors.Join(err, d.cmd.Process.Kill(), <-d.done)
	}
}

// Tail is the end of the log.
func (d *Daemon) Tail() string {
	raw, err := os.ReadFile(d.Log)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(raw[max(0, len(raw)-most):])
}

// World says where to count what this daemon's pods may leave.
func (d *Daemon) World() world.Where {
	return world.Where{
		State: d.State, Root: d.Root,
		Leases:       filepath.Join(d.lab.Dir, "leases"),
		CgroupParent: d.lab.CgroupParent,
		Containerd:   d.Containerd,
		Processes:    true,
		// What the tests themselves run, and the daemon.
		IgnoreProcesses: []string{"lab", "exe", d.program[:min(len(d.program), commLength)]},
	}
}

// Client speaks CRI.
type Client struct {
	runtime.RuntimeServiceClient
	runtime.ImageServiceClient

	conn *grpc.ClientConn
}

// Dial makes a client of a CRI socket. It does not wait for the server.
func Dial(socket string, more ...grpc.DialOption) (*Client, error) {
	const most = 64 << 20
	conn, err := grpc.NewClient("unix://"+socket, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Daemons are restarted all the time here, and soon back.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, Jitter: 0.1, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(most), grpc.MaxCallSendMsgSize(most)),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("could not dial %s: %w", socket, err)
	}
	return &Client{runtime.NewRuntimeServiceClient(conn), runtime.NewImageServiceClient(conn), conn}, nil
}

// Conn is the connection itself.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }
