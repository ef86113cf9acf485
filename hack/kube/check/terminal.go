// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"
)

// inTerminal runs a command on a terminal of its own and returns what it printed there.
func inTerminal(cmd *exec.Cmd, rows, columns uint16) (string, error) {
	master, path, err := console.NewPty()
	if err != nil {
		return "", fmt.Errorf("could not make a terminal: %w", err)
	}
	defer func() { _ = master.Close() }()
	if err := master.Resize(console.WinSize{Height: rows, Width: columns}); err != nil {
		return "", err
	}
	slave, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := errors.Join(cmd.Start(), slave.Close()); err != nil {
		return "", err
	}
	var out bytes.Buffer
	// When the last process has closed the terminal, reading it fails.
	_, err = io.Copy(&out, master)
	if err != nil && !errors.Is(err, unix.EIO) {
		return out.String(), errors.Join(err, cmd.Wait())
	}
	return out.String(), cmd.Wait()
}
