// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	initName  = "sandflow-init"
	initUser  = 65534 // nobody: whoever becomes PID 1 owns nothing
	noNewPriv = 1
)

// initMain runs as PID 1 of the pod's new PID and mount namespaces. It locks
// itself into an empty read-only root, gives everything up, and becomes a
// program of a few instructions that does nothing (initelf.go): orphans of the
// pod are reaped by the kernel since SIGCHLD is ignored.
func initMain() int {
	status := os.NewFile(fdInitStatus, "status")
	unix.CloseOnExec(fdInitStatus)
	err := becomeInit()
	_, _ = fmt.Fprintln(status, err) // the shim sees that the init has gone
	return 1
}

func becomeInit() error {
	goOn := os.NewFile(fdInitGo, "go")
	unix.CloseOnExec(fdInitGo)
	if n, err := goOn.Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("shim has gone: %w", err)
	}
	if os.Getpid() != 1 {
		return errors.New("not PID 1 of a PID namespace")
	}
	if err := enterEmptyRoot(); err != nil {
		return err
	}
	signal.Ignore(unix.SIGCHLD)
	if err := dropPrivileges(); err != nil {
		return err
	}
	for fd := range 3 {
		unix.CloseOnExec(fd)
	}
	// Not readable for nobody, and so not dumpable: no process of the pod, root
	// or not, can look through /proc/1 into it.
	err := unix.Exec("/"+initName, []string{initName}, nil)
	return fmt.Errorf("run %s: %w", initName, err)
}

// enterEmptyRoot makes a tmpfs with nothing but the init program the root, and lets go of all other mounts.
func enterEmptyRoot() error {
	const target = "/proc" // any directory will do: the mount is seen in this mount namespace only
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k,nr_inodes=8,mode=0555"); err != nil {
		return fmt.Errorf("mount empty root: %w", err)
	}
	elf, err := initProgram()
	if err != nil {
		return err
	}
	path := filepath.Join(target, initName)
	if err := os.WriteFile(path, elf, 0o111); err != nil {
		return fmt.Errorf("write init: %w", err)
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make root read-only: %w", err)
	}
	if err := unix.Chdir(target); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot into empty root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount old root: %w", err)
	}
	return unix.Chdir("/")
}

// dropPrivileges becomes nobody, without capabilities now or later.
func dropPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, noNewPriv, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			break // past the last capability
		}
	}
	if err := unix.Setgroups(nil); err != nil {
		return fmt.Errorf("drop groups: %w", err)
	}
	id := initUser
	if errors.Is(unix.Setresgid(id, id, id), unix.EINVAL) { // a small user namespace does not have it
		id = 1
	}
	if err := unix.Setresgid(id, id, id); err != nil {
		return fmt.Errorf("change group: %w", err)
	}
	if err := unix.Setresuid(id, id, id); err != nil {
		return fmt.Errorf("change user: %w", err)
	}
	return nil
}
