// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// initUserMode is the argument of the process between the shim and an init in a user namespace.
	initUserMode = "init-user"
	// sigsetSize is the size of the kernel's signal set in bytes.
	sigsetSize = 8
	// fdInitPID takes the init's PID from it.
	fdInitPID = 5
)

// cloneInUserNamespace starts the init in an existing user namespace, so that
// it owns the PID namespace and containers may mount its proc. Only a process
// of one thread may join a user namespace, which no Go program is: the joining
// is done between fork and exec.
func cloneInUserNamespace(user string, status, goOn *os.File) (int, error) {
	ns, err := os.Open(user)
	if err != nil {
		return 0, err
	}
	defer func() { _ = ns.Close() }()
	pidR, pidW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = pidR.Close() }()
	defer func() { _ = pidW.Close() }()
	f, err := newForkArgs(ns, []*os.File{status, goOn, pidW})
	if err != nil {
		return 0, err
	}
	if _, err := f.run(); err != nil {
		return 0, fmt.Errorf("fork init: %w", err)
	}
	_ = pidW.Close()
	buf := make([]byte, 16)
	n, _ := pidR.Read(buf) // its end means that the process has failed
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return 0, fmt.Errorf("start init in user namespace %s: %s", user, buf[:n])
	}
	return pid, nil
}

// initUserMain starts the init from inside the user namespace and leaves it to the shim.
func initUserMain() int {
	out := os.NewFile(fdInitPID, "pid")
	pid, err := startInNewNamespaces(os.NewFile(fdInitStatus, "status"), os.NewFile(fdInitGo, "go"))
	if err != nil {
		_, _ = fmt.Fprintln(out, err) // nobody else to tell
		return 1
	}
	_, _ = fmt.Fprintln(out, pid) // the shim takes the end as a failure
	return 0
}

// forkArgs are what the child needs after fork, all made before it.
type forkArgs struct {
	path       *byte
	argv, envv []*byte
	ns         uintptr
	files      [3]uintptr // become 3, 4, 5
}

func newForkArgs(ns *os.File, files []*os.File) (*forkArgs, error) {
	f := &forkArgs{ns: ns.Fd()}
	for i, file := range files {
		f.files[i] = file.Fd()
	}
	var err error
	if f.path, err = syscall.BytePtrFromString("/proc/self/exe"); err != nil {
		return nil, err
	}
	if f.argv, err = syscall.SlicePtrFromStrings([]string{initName, initUserMode}); err != nil {
		return nil, err
	}
	f.envv, err = syscall.SlicePtrFromStrings([]string{"GOMAXPROCS=1"})
	return f, err
}

// run forks with all signals blocked: their handlers are Go's and must not run in the child.
func (f *forkArgs) run() (int, error) {
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, err
	}
	pid, errno := f.fork(&old)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil {
		return 0, err
	}
	if errno != 0 {
		return 0, errno
	}
	return int(pid), nil
}

// fork forks; the child joins the user namespace as its root and runs the
// program. After clone it may only make system calls.
//
//go:norace
//go:nosplit
func (f *forkArgs) fork(old *unix.Sigset_t) (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETNS, f.ns, unix.CLONE_NEWUSER, 0); errno != 0 {
		goto fail
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESGID, 0, 0, 0); errno != 0 {
		goto fail
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno != 0 {
		goto fail
	}
	// First out of the way of each other, then to their places.
	for i := 0; i < len(f.files); i++ {
		fd, _, e := syscall.RawSyscall(unix.SYS_FCNTL, f.files[i], unix.F_DUPFD_CLOEXEC, 64)
		if errno = e; errno != 0 {
			goto fail
		}
		f.files[i] = fd
	}
	for i := range f.files {
		if _, _, errno = syscall.RawSyscall(unix.SYS_DUP3, f.files[i], uintptr(fdInitStatus+i), 0); errno != 0 {
			goto fail
		}
	}
	_, _, _ = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(old)), 0, sigsetSize, 0, 0)
	_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(f.path)),
		uintptr(unsafe.Pointer(&f.argv[0])), uintptr(unsafe.Pointer(&f.envv[0])))
fail:
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(errno), 0, 0)
	}
}
