// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// frozen is what stands still.
type frozen struct {
	shim, runtime *pod
	// forget ends the calls that wait for the runtime and the plugin, as a client does that
	// gives up, and waits for them.
	forget func()
	plugin *pod
	pids   []int
}

// freeze stops the shim of the first pod, the OCI runtime as it makes a container of another,
// and a network plugin as it attaches a third.
func (s *side) freeze(ctx context.Context, pods []*pod) (*frozen, error) {
	f := &frozen{shim: pods[0], runtime: s.newPod(), plugin: s.newPod()}
	shims, err := processes(func(args []string) bool {
		return strings.Contains(filepath.Base(args[0]), "containerd-shim") && strings.Contains(strings.Join(args, " "), f.shim.id)
	})
	if err != nil || len(shims) != 1 {
		return nil, fmt.Errorf("shims of the first pod: %v (%w)", shims, err)
	}
	if err := syscall.Kill(shims[0], syscall.SIGSTOP); err != nil {
		return nil, err
	}
	calls, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, 2)
	f.forget = func() {
		cancel()
		<-done
		<-done
	}
	if err := s.run(ctx, f.runtime, "frozen", 0); err != nil {
		cancel()
		return nil, err
	}
	id, err := s.create(ctx, f.runtime, "freeze", &cri.KeyValue{Key: "FREEZE", Value: []byte("1")})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		_, _ = s.client.StartContainer(calls, &cri.StartContainerRequest{ContainerId: id}) // it never ends well
		done <- struct{}{}
	}()
	runtimes, err := await(func(args []string) bool { return contains(args, "frozen-runc") && contains(args, "create") })
	if err != nil {
		cancel()
		return nil, err
	}
	if err := os.WriteFile(s.control, []byte("hang ADD"), 0o600); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		_, _ = s.client.RunPodSandbox(calls, &cri.RunPodSandboxRequest{Config: f.plugin.config})
		done <- struct{}{}
	}()
	plugins, err := await(func(args []string) bool { return filepath.Base(args[0]) == "failcni" })
	if err == nil {
		err = errors.Join(syscall.Kill(plugins[0], syscall.SIGSTOP), s.obeyNothing())
	}
	f.pids = append(append(shims, runtimes...), plugins...)
	return f, err
}

// removals removes what is frozen, and says how long that takes.
func (s *side) removals(ctx context.Context, f *frozen) (slow, err error) {
	fmt.Printf("\n| removal of the pod with the frozen | s |\n|---|--:|\n")
	for _, one := range []struct {
		what   string
		remove func() error
	}{
		{"shim (StopPodSandbox, RemovePodSandbox)", func() error { return s.remove(ctx, f.shim.id) }},
		{"OCI runtime (the same)", func() error { return s.remove(ctx, f.runtime.id) }},
		{"network plugin (the client gives up, and runs the pod again)", func() error {
			f.forget()
			return s.run(ctx, f.plugin, "", 0)
		}},
	} {
		start := time.Now()
		failed := one.remove()
		d := time.Since(start)
		text := fmt.Sprintf("%.1f", d.Seconds())
		if failed != nil {
			text = fmt.Sprintf("%s, after %.1f", codeOf(failed), d.Seconds())
		}
		err = errors.Join(err, failed)
		fmt.Printf("| %s | %s |\n", one.what, text)
		if s.bounded && d > mostRemoval {
			slow = fmt.Errorf("removal of the pod with the frozen %s takes %s", one.what, d)
		}
	}
	if f.plugin.id != "" {
		err = errors.Join(err, s.remove(ctx, f.plugin.id))
	}
	for _, pid := range f.pids {
		if _, gone := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); gone == nil {
			if s.bounded {
				slow = errors.Join(slow, fmt.Errorf("process %d is still frozen", pid))
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	if !s.bounded { // as it does not stand still any more
		err = nil
	}
	return slow, err
}

func contains(args []string, what string) bool {
	for _, a := range args {
		if filepath.Base(a) == what {
			return true
		}
	}
	return false
}

// await waits for a process.
func await(match func(args []string) bool) ([]int, error) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if pids, err := processes(match); err != nil || len(pids) > 0 {
			return pids, err
		}
	}
	return nil, errors.New("what is to be frozen does not come")
}

// processes finds those whose command line matches.
func processes(match func(args []string) bool) ([]int, error) {
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	var out []int
	for _, path := range found {
		raw, rerr := os.ReadFile(path)
		pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if rerr == nil && perr == nil && len(raw) > 0 && match(strings.Split(string(raw), "\x00")) {
			out = append(out, pid)
		}
	}
	return out, err
}

// codeOf is the gRPC code of an error with something around it.
func codeOf(err error) string {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code().String()
	}
	return err.Error()
}
