// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"

	sandboxapi "github.com/containerd/containerd/api/runtime/sandbox/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	ctrdns "github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

// The listeners that the daemon hands over.
const (
	fdAPI     = 3
	fdStreams = 4
)

// serve runs the shim until it is told to shut down.
func serve(o options) error {
	logTo(os.Stderr)
	closeStrangers()
	if err := prepareProcess(); err != nil {
		return err
	}
	api, err := inherited(fdAPI, "api")
	if err != nil {
		return err
	}
	streams, err := inherited(fdStreams, "streams")
	if err != nil {
		return err
	}
	ctx, sd := shutdown.WithShutdown(ctrdns.WithNamespace(context.Background(), o.namespace))
	p := newPod(ctx, o, sd)
	if p.tasks, err = task.NewTaskService(ctx, p, sd); err != nil {
		return fmt.Errorf("make task service: %w", err)
	}
	server, err := ttrpc.NewServer(
		ttrpc.WithServerHandshaker(ttrpc.UnixSocketRequireSameUser()),
		ttrpc.WithUnaryServerInterceptor(withNamespace(o.namespace)),
	)
	if err != nil {
		return err
	}
	taskapi.RegisterTTRPCTaskService(server, &taskService{TTRPCTaskService: p.tasks, pod: p})
	sandboxapi.RegisterTTRPCSandboxService(server, newSandbox(p))
	shimapi.RegisterPodService(server, p)

	go p.init.start(o)
	go serveStreams(ctx, streams, p)
	go func() {
		if err := server.Serve(ctx, api); err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
			log.G(ctx).WithError(err).Error("serve ttrpc")
		}
	}()
	<-sd.Done()
	p.settle(server)
	return nil
}

// closeStrangers closes what was inherited beyond the two listeners, so that
// nobody waits for its end for as long as the pod lives. All that Go has opened
// itself is marked as close-on-exec.
func closeStrangers() {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, d := range open {
		fd, err := strconv.Atoi(d.Name())
		if err != nil || fd <= fdStreams {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// prepareProcess makes the shim the parent of orphans of its containers, and
// deaf to signals meant for others.
func prepareProcess() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	// Best effort: it needs CAP_SYS_RESOURCE, and a shim with the daemon's score is as good.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-998"), 0)
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE)
	children := make(chan os.Signal, 32)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			if err := reaper.Reap(); err != nil {
				log.L.WithError(err).Error("reap")
			}
		}
	}()
	return nil
}

func inherited(fd uintptr, name string) (net.Listener, error) {
	unix.CloseOnExec(int(fd))
	f := os.NewFile(fd, name)
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("inherit listener %s: %w", name, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, nil
}

// withNamespace gives a request the pod's namespace, whatever its sender says.
func withNamespace(ns string) ttrpc.UnaryServerInterceptor {
	return func(ctx context.Context, u ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, m ttrpc.Method) (any, error) {
		return m(ctrdns.WithNamespace(ctx, ns), u)
	}
}
