// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// lateCreate is how long after a crash containerd may still be making what the
// daemon had asked for before.
const lateCreate = 2 * time.Second

// deleteLate deletes what comes of a creation that a crash of the daemon has cut off. A
// containerd of its own may still be at it. One inside of the daemon has died too, but
// not the program that it had start the shim: what that starts no containerd knows of.
func (t *foreignTasks) deleteLate(ctx context.Context, id, dir string) error {
	for deadline := time.Now().Add(lateCreate); time.Now().Before(deadline); {
		time.Sleep(lateCreate / 20)
		if _, err := t.deleteContainer(ctx, id, dir); err != nil {
			return err
		}
	}
	return killLateShims(ctx, t.foreign.m.cfg.Namespace, id)
}

// killLateShims kills shims that were started for a container, and what starts them, and removes
// their sockets. First the latter, so that nothing comes after it.
func killLateShims(ctx context.Context, namespace, id string) error {
	for _, starter := range []bool{true, false} {
		procs, err := os.ReadDir("/proc")
		if err != nil {
			return fmt.Errorf("look for stray shims: %w", err)
		}
		for _, p := range procs {
			pid, err := strconv.Atoi(p.Name())
			if err != nil || pid == os.Getpid() {
				continue
			}
			args, ok := shimArgs(pid, namespace, id)
			if !ok || starter != (args[len(args)-1] == "start") {
				continue
			}
			address := after(args, "-address")
			err = bundle.KillIf(pid, func() bool { _, ok := shimArgs(pid, namespace, id); return ok })
			if err = errors.Join(err, removeShimSockets(ctx, namespace, address, id)); err != nil {
				return fmt.Errorf("end the stray shim of container %s: %w", id, err)
			}
		}
	}
	return nil
}

// shimArgs gives the command line of a process if it is that of a shim of a container. IDs are
// random, so that nobody else has one on his command line in that place.
func shimArgs(pid int, namespace, id string) ([]string, bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil, false
	}
	args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
	return args, after(args, "-namespace") == namespace && after(args, "-id") == id
}

func after(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// removeShimSockets removes the sockets of a shim that was killed.
func removeShimSockets(ctx context.Context, namespace, address, id string) error {
	var errs []error
	for _, debug := range []bool{false, true} {
		socket, err := shim.SocketAddress(namespaces.WithNamespace(ctx, namespace), address, id, debug)
		if err == nil {
			err = shim.RemoveSocket(socket)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
