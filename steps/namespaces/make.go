// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package namespaces

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"

	"github.com/containerd/containerd/v2/pkg/sys"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/pod"
)

// make makes the namespaces, pins them, and sets them up from inside.
func (p *plan) make() error {
	if p.user != nil {
		return p.makeOwned()
	}
	if p.allFlags() == 0 {
		return nil
	}
	return onThrowAwayThread(func() error {
		if err := unix.Unshare(int(p.allFlags())); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		for kind := range p.flags {
			if err := pin("/proc/thread-self/ns/"+kind, p.path(kind)); err != nil {
				return err
			}
		}
		return p.setUp()
	})
}

// makeOwned makes a user namespace and the others owned by it. A threaded
// program cannot enter a user namespace, so a child that never runs has them
// until they are pinned.
func (p *plan) makeOwned() error {
	err := sys.UnshareAfterEnterUserns(mapping(p.user.UID), mapping(p.user.GID), p.allFlags(), func(pid int) error {
		ns := fmt.Sprintf("/proc/%d/ns/", pid)
		for kind := range p.flags {
			if err := pin(ns+kind, p.path(kind)); err != nil {
				return err
			}
		}
		return pin(ns+"user", p.path("user"))
	})
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	return onThrowAwayThread(func() error {
		for kind, flag := range p.flags {
			if err := enter(p.path(kind), flag); err != nil {
				return err
			}
		}
		return p.setUp()
	})
}

func mapping(m *runtime.IDMapping) string {
	return fmt.Sprintf("%d:%d:%d", m.GetContainerId(), m.GetHostId(), m.GetLength())
}

func enter(path string, flag uintptr) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Setns(int(f.Fd()), int(flag)); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

// setUp runs on a thread inside the namespaces, which is thrown away afterwards.
func (p *plan) setUp() error {
	if p.has("uts") {
		if err := unix.Sethostname([]byte(p.host)); err != nil {
			return fmt.Errorf("set the host name %q: %w", p.host, err)
		}
	}
	if p.has("net") {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("bring lo up: %w", err)
		}
	}
	if err := write(p.sysctls, false); err != nil {
		return err
	}
	if p.user != nil {
		// The settings of an IPC namespace may be written by its root alone,
		// whatever our capabilities. This is the thread's last act.
		uid, _ := p.user.Root()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			return fmt.Errorf("become the pod's root (uid %d): %w", uid, errno)
		}
	}
	return write(p.sysctls, true)
}

// write writes the settings of the IPC namespace, or the others.
func write(list []pod.Sysctl, ipc bool) error {
	for _, s := range list {
		if s.IPC != ipc {
			continue
		}
		if err := writeSysctl(s); err != nil {
			return fmt.Errorf("set sysctl %s to %q: %w", s.Name, s.Value, err)
		}
	}
	return nil
}

func writeSysctl(s pod.Sysctl) error {
	f, err := os.OpenFile(s.Path(), os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: the kernel has no such setting for pods: %w", errdefs.ErrInvalidArgument, err)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Value)
	err = errors.Join(err, f.Close())
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: the kernel refuses the value: %w", errdefs.ErrInvalidArgument, err)
	}
	return err
}

// loopbackUp needs neither netlink nor a plugin program.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// onThrowAwayThread runs f on a thread that ends afterwards, so that nothing
// of the program ever runs with what f did to it. The main thread does not
// end, and would keep the namespaces for ever: it is held while another runs f.
func onThrowAwayThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- onThrowAwayThread(f)
			goruntime.UnlockOSThread()
			return
		}
		done <- f() // locked for good: the thread ends with the goroutine
	}()
	return <-done
}
