// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// initMode is the argument that makes this program set up a pod's init.
const initMode = "init"

// File descriptors of the init while it is set up.
const (
	fdInitStatus = 3 // an error text, or nothing when it has become the init
	fdInitGo     = 4 // one byte lets it go on; its end ends it
)

// initProcess is the init of the pod's shared PID namespace, if there is one.
type initProcess struct {
	ready chan struct{} // closed when started or failed
	err   error

	mu  sync.Mutex
	pid int // 0: none
}

func newInit(o options) *initProcess {
	i := &initProcess{ready: make(chan struct{})}
	if !o.sharedPID {
		close(i.ready)
	}
	return i
}

// wait gives the init's PID, 0 if the pod has none.
func (i *initProcess) wait(ctx context.Context) (int, error) {
	select {
	case <-i.ready:
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for init: %w", ctx.Err())
	}
	if i.err != nil {
		return 0, fmt.Errorf("start init of the pod: %w: %w", i.err, errdefs.ErrFailedPrecondition)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.pid, nil
}

// start starts the init, if the pod has one.
func (i *initProcess) start(o options) {
	if !o.sharedPID {
		return
	}
	defer close(i.ready)
	pid, err := startInit(o)
	if err != nil {
		i.err = err
		log.L.WithError(err).Error("start init")
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pid = pid
}

// stop kills the init and with it all that is left in its PID namespace.
func (i *initProcess) stop() {
	select {
	case <-i.ready: // one that is being started would be left otherwise
	case <-time.After(killGrace):
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pid == 0 {
		return
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if unix.Kill(i.pid, unix.SIGKILL) != nil { // reaped: until then its PID cannot be another's
			break
		}
	}
	i.pid = 0
}

// startInit forks this program as PID 1 of a new PID namespace and waits until
// it has turned into the init.
func startInit(o options) (int, error) {
	status, statusTheirs, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = status.Close() }()
	defer func() { _ = statusTheirs.Close() }()
	goTheirs, goOn, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = goTheirs.Close() }()
	defer func() { _ = goOn.Close() }()

	pid, err := forkInit(o, statusTheirs, goTheirs)
	if err != nil {
		return 0, err
	}
	_ = statusTheirs.Close()
	if err = recordInit(pid); err == nil {
		err = joinCgroup(o.cgroup, pid)
	}
	if err == nil {
		_, err = goOn.Write([]byte{1})
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(status)
	}
	if err == nil && len(text) > 0 {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return 0, err
	}
	return pid, nil
}

// forkInit forks from a thread that has joined the pod's namespaces and is
// thrown away afterwards.
func forkInit(o options, status, goOn *os.File) (int, error) {
	type result struct {
		pid int
		err error
	}
	c := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := o.join(); err != nil {
			c <- result{err: err}
			return
		}
		pid, err := clone(o.user, status, goOn)
		c <- result{pid, err}
	}()
	r := <-c
	return r.pid, r.err
}

// join moves the calling thread into the pod's namespaces, except the user
// namespace, so that the pod's processes see nothing of the node in /proc/1.
func (n namespaces) join() error {
	for _, ns := range []struct {
		path string
		kind int
	}{{n.net, unix.CLONE_NEWNET}, {n.ipc, unix.CLONE_NEWIPC}, {n.uts, unix.CLONE_NEWUTS}} {
		if ns.path == "" {
			continue
		}
		fd, err := unix.Open(ns.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open namespace %s: %w", ns.path, err)
		}
		err = unix.Setns(fd, ns.kind)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("join namespace %s: %w", ns.path, err)
		}
	}
	return nil
}
