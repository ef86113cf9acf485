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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// initArg tells a copy of the program that it is process 1 of a laboratory.
const initArg = "lab-init"

// Run opens a laboratory, runs a command in it and closes it again. It returns the
// command's exit code. Everything that the command left running ends with it. The
// program's main must call InitIfAsked first.
func Run(ctx context.Context, build string, command []string) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("a laboratory needs root, for its namespaces")
	}
	l, err := newLab(build)
	if err != nil {
		return 1, fmt.Errorf("could not make a laboratory: %w", err)
	}
	defer func() {
		err = errors.Join(err, l.removeCgroups())
		if os.Getenv("SANDFLOW_LAB_KEEP") == "" {
			err = errors.Join(err, os.RemoveAll(l.Dir))
		}
	}()
	if err := os.Mkdir(filepath.Join(l.Dir, "tmp"), 0o1777); err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", append([]string{initArg}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = l.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, fmt.Errorf("could not run %s in a laboratory: %w", command[0], err)
	}
	return 0, nil
}

// InitIfAsked becomes process 1 of a laboratory if the program was started as one;
// otherwise it returns at once.
func InitIfAsked() {
	if len(os.Args) < 3 || os.Args[1] != initArg {
		return
	}
	code, err := labInit(os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		code = 1
	}
	os.Exit(code)
}

// labInit sets the namespaces up, runs the command, and reaps until it has ended.
// Leaving then ends all other processes of the namespace.
func labInit(command []string) (int, error) {
	if err := setUp(); err != nil {
		return 1, err
	}
	// Tests name cgroups by their process ID, and all laboratories share the cgroups: let the
	// IDs start at one that no other laboratory has.
	if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(os.Getenv(envPID)), 0); err != nil {
		return 1, fmt.Errorf("could not set the next process ID: %w", err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 1, err
	}
	p, err := os.StartProcess(path, command, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, fmt.Errorf("could not wait for %s: %w", command[0], err)
		case pid == p.Pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case pid == p.Pid:
			return status.ExitStatus(), nil
		}
	}
}

func setUp() error {
	// Cut off from the host first, then shared among our own children: mounts with
	// propagation need a shared tree.
	for _, flags := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", flags|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("could not make / private and shared: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("could not mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("could not mount /run: %w", err)
	}
	if err := os.Mkdir(mountPoint, 0o711); err != nil {
		return err
	}
	if err := unix.Mount(os.Getenv(envDisk), mountPoint, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("could not mount the laboratory's directory: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("could not find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("could not bring lo up: %w", err)
	}
	return nil
}
