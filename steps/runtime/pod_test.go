// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	runtimetest.RemoveShim()
	runtimetest.RemoveCgroups()
	os.Exit(code)
}

// lab is a pod with its shim.
type lab struct {
	*testing.T
	m     *Manager
	state string
	pod   Pod
	shim  Shim
	tasks Tasks
	n     int
}

func newLab(t *testing.T, change func(*LaunchRequest)) *lab {
	t.Helper()
	runc := runtimetest.Root(t)
	l := &lab{T: t, state: runtimetest.State(t)}
	l.m = NewManager(Config{State: l.state, Shim: runtimetest.Shim(t), Handlers: map[string]Handler{"": {Type: OwnType, Binary: runc}}})
	t.Cleanup(func() { _ = l.m.Close() })
	r := LaunchRequest{PodID: "pod1", Dir: l.dir()}
	if change != nil {
		change(&r)
	}
	t.Cleanup(func() {
		if err := l.m.Shutdown(context.Background(), "pod1", l.dir()); err != nil {
			t.Errorf("shut down: %v", err)
		}
	})
	var err error
	if l.shim, err = l.m.Launch(t.Context(), r); err != nil {
		t.Fatalf("launch: %v", err)
	}
	l.pod = Pod{ID: "pod1", Address: l.shim.Address, Streams: l.shim.Streams}
	if l.tasks, err = l.m.Tasks(l.pod); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *lab) dir() string               { return filepath.Join(l.state, "pods", "pod1", "shim") }
func (l *lab) bundle(id string) string   { return filepath.Join(l.state, "containers", id) }
func (l *lab) logPath(id string) string  { return filepath.Join(l.state, "logs", "sub", id+".log") }
func (l *lab) script(text string) string { return l.run(nil, CreateRequest{}, "sh", "-c", text) }

// run creates and starts a container and gives its ID.
func (l *lab) run(change func(*specs.Spec), r CreateRequest, args ...string) string {
	l.Helper()
	id := l.create(change, r, args...)
	if err := l.tasks.Start(l.Context(), id); err != nil {
		l.Fatalf("start: %v", err)
	}
	return id
}

func (l *lab) create(change func(*specs.Spec), r CreateRequest, args ...string) string {
	l.Helper()
	l.n++
	r.ID = fmt.Sprintf("%s-%d-%d", strings.ToLower(filepath.Base(l.Name())), os.Getpid(), l.n)
	r.Bundle = l.bundle(r.ID)
	if r.LogPath == "" {
		r.LogPath = l.logPath(r.ID)
	}
	runtimetest.Bundle(l, r.Bundle, r.ID, change, args...)
	l.Cleanup(func() { _, _ = l.tasks.Delete(context.Background(), r.ID, r.Bundle) }) // also of a failed test
	if _, err := l.tasks.Create(l.Context(), r); err != nil {
		l.Fatalf("create: %v", err)
	}
	return r.ID
}

func (l *lab) wait(id string) Exit {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), 30*time.Second)
	defer cancel()
	e, err := l.tasks.Wait(ctx, id)
	if err != nil {
		l.Fatalf("wait: %v", err)
	}
	return e
}

func (l *lab) delete(id string) Exit {
	l.Helper()
	e, err := l.tasks.Delete(l.Context(), id, l.bundle(id))
	if err != nil {
		l.Fatalf("delete: %v", err)
	}
	for _, c := range []string{"memory", "pids", ""} {
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", c, runtimetest.CgroupParent, id)); err == nil {
			l.Errorf("cgroup of %s in hierarchy %q is left", id, c)
		}
	}
	return e
}

// logged gives the content of the log, joined per stream.
func (l *lab) logged(id string) map[string]string {
	l.Helper()
	b, err := os.ReadFile(l.logPath(id))
	if err != nil {
		l.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) != 4 || (f[2] != "P" && f[2] != "F") {
			l.Fatalf("bad record %q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			l.Fatal(err)
		}
		out[f[1]] += f[3]
		if f[2] == "F" {
			out[f[1]] += "\n"
		}
	}
	return out
}

func (l *lab) exec(ctx context.Context, id, execID, script string) (string, int, error) {
	var out, errs bytes.Buffer
	code, err := l.tasks.Exec(ctx, ExecRequest{ID: id, ExecID: execID, Stdout: &out, Stderr: &errs, Process: process("sh", "-c", script)})
	return out.String() + errs.String(), code, err
}

func process(args ...string) *specs.Process {
	return &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin"}}
}

func TestRunLogExitDelete(t *testing.T) {
	l := newLab(t, nil)
	id := l.script("echo out; echo err >&2; printf rest; exit 7")
	if e := l.wait(id); e.Code != 7 || e.OOMKilled || time.Since(e.At) > time.Minute {
		t.Errorf("exit %+v, want 7", e)
	}
	if got := l.logged(id); got["stdout"] != "out\nrest" || got["stderr"] != "err\n" {
		t.Errorf("log %q", got)
	}
	s, err := l.tasks.State(t.Context(), id)
	if err != nil || s.Status != StatusStopped || s.Exit.Code != 7 {
		t.Errorf("state %+v, %v", s, err)
	}
	if err := l.tasks.ReopenLog(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("case 23: reopen after exit: %v", err)
	}
	for range 2 {
		if e := l.delete(id); e.Code != 7 {
			t.Errorf("delete gives %+v", e)
		}
	}
	if e := l.wait(id); e.Code != 7 {
		t.Errorf("wait after delete gives %+v", e)
	}
	if err := l.tasks.Kill(t.Context(), id, uint32(unix.SIGTERM), false); !errdefs.IsNotFound(err) {
		t.Errorf("kill after delete: %v", err)
	}
}

func TestKillAndSignals(t *testing.T) {
	l := newLab(t, nil)
	id := l.script("trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	l.awaitLog(id, "ready")
	if err := l.tasks.Kill(t.Context(), id, uint32(unix.SIGTERM), false); err != nil {
		t.Fatal(err)
	}
	if e := l.wait(id); e.Code != 5 {
		t.Errorf("exit %+v, want 5", e)
	}
	if err := l.tasks.Kill(t.Context(), id, uint32(unix.SIGTERM), false); !errdefs.IsNotFound(err) {
		t.Errorf("kill after exit: %v", err)
	}
	id = l.script("sleep 1000")
	if pids, err := l.tasks.Pids(t.Context(), id); err != nil || len(pids) == 0 {
		t.Errorf("pids %v, %v", pids, err)
	}
	if e := l.delete(id); e.Code != 137 {
		t.Errorf("delete of a running container gives %+v, want 137", e)
	}
}

func (l *lab) awaitLog(id, want string) {
	l.Helper()
	for range 500 {
		if b, _ := os.ReadFile(l.logPath(id)); bytes.Contains(b, []byte(want)) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	l.Fatalf("%q is not in the log", want)
}

func TestStartOfMissingProgramKeepsTheRuntimesWords(t *testing.T) {
	l := newLab(t, nil)
	id := "missing"
	runtimetest.Bundle(t, l.bundle(id), id, nil, "/no/such/program")
	_, err := l.tasks.Create(t.Context(), CreateRequest{ID: id, Bundle: l.bundle(id)})
	if err == nil {
		err = l.tasks.Start(t.Context(), id)
	}
	if err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("error %v does not say what is missing", err)
	}
	l.delete(id)
	if d, _ := os.ReadDir(filepath.Join(l.dir(), "runc", "k8s.io")); len(d) > 0 {
		t.Errorf("runc state is left: %v", d)
	}
}

func TestOOMKilled(t *testing.T) { // case 14
	l := newLab(t, nil)
	limit := int64(32 << 20)
	var wg sync.WaitGroup
	for range 10 {
		id := l.create(func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
		}, CreateRequest{}, "sh", "-c", "exec tail /dev/zero")
		wg.Go(func() {
			if err := l.tasks.Start(t.Context(), id); err != nil {
				t.Error(err)
				return
			}
			if e, err := l.tasks.Wait(t.Context(), id); err != nil || e.Code != 137 || !e.OOMKilled {
				t.Errorf("exit %+v, %v, want 137 by OOM", e, err)
			}
		})
	}
	wg.Wait()
	id := l.script("sleep 1000")
	if e := l.delete(id); e.OOMKilled {
		t.Error("a killed container passes for OOM killed")
	}
}

func TestExec(t *testing.T) { // cases 30, 32, 34
	l := newLab(t, nil)
	id := l.script("sleep 1000")
	before, _ := l.tasks.State(t.Context(), id)
	if out, code, err := l.exec(t.Context(), id, "e1", "seq 1 200000; exit 3"); err != nil || code != 3 || !strings.HasSuffix(out, "\n200000\n") {
		t.Errorf("exec: code %d, %v, %d bytes", code, err, len(out))
	}
	if _, _, err := l.exec(t.Context(), "none", "e1", "true"); !errdefs.IsNotFound(err) {
		t.Errorf("exec in an unknown container: %v", err)
	}
	_, err := l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: "e2", Process: process("/no/such")})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("exec of a missing program: %v", err)
	}
	for i := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, _, err := l.exec(ctx, id, fmt.Sprint("k", i), "sleep 1234 & (sleep 1235; true) & setsid sleep 1236; true")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exec past its deadline: %v", err)
		}
	}
	if out, _, err := l.exec(t.Context(), id, "e3", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); err != nil || strings.Contains(out, "123") {
		t.Errorf("processes of killed execs are left: %q, %v", out, err)
	}
	if after, err := l.tasks.State(t.Context(), id); err != nil || after != before {
		t.Errorf("container was %+v, is %+v, %v", before, after, err)
	}
	start := time.Now()
	if out, _, err := l.exec(t.Context(), id, "e4", "sleep 60 & echo hi"); err != nil || out != "hi\n" || time.Since(start) > 20*time.Second {
		t.Errorf("exec that leaves a process: %q, %v, %s", out, err, time.Since(start))
	}
}

func TestShimKilledLosesNothing(t *testing.T) { // case 13
	l := newLab(t, nil)
	ended, running := l.script("exit 42"), l.script("sleep 1000")
	if e := l.wait(ended); e.Code != 42 {
		t.Fatalf("exit %+v", e)
	}
	gone, err := l.m.Alive(l.pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(l.shim.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-gone
	if gone, err = l.m.Alive(l.pod); err != nil {
		t.Error(err)
	}
	<-gone
	if e := l.delete(ended); e.Code != 42 {
		t.Errorf("exit code lost: %+v", e)
	}
	if _, err := l.tasks.Wait(t.Context(), running); !errdefs.IsUnavailable(err) {
		t.Errorf("wait with a dead shim: %v", err)
	}
	if e := l.delete(running); e.Code != 137 {
		t.Errorf("killed without a shim: %+v", e)
	}
}

func TestStoppedShimIsShutDown(t *testing.T) {
	l := newLab(t, nil)
	id := l.script("sleep 1000")
	if err := unix.Kill(l.shim.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := l.m.Shutdown(t.Context(), "pod1", l.dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.dir()); err == nil {
		t.Error("directory is left")
	}
	l.delete(id)
}

func TestSharedPIDNamespace(t *testing.T) {
	l := newLab(t, func(r *LaunchRequest) { r.SharedPID = true; r.CgroupPath = runtimetest.CgroupParent + "/init" })
	share := func(s *specs.Spec) { s.Linux.Namespaces[0].Path = l.shim.PIDNamespace }
	id := l.run(share, CreateRequest{}, "sh", "-c", "for i in 1 2 3; do (sh -c 'sleep 0.1 & exec true' &); done; sleep 1; cat /proc/1/comm; cat /proc/[0-9]*/stat | grep -c ') Z'; ls /proc/1/root/ /proc/1/exe")
	l.wait(id)
	got := l.logged(id)
	if got["stdout"] != "sandflow-init\n0\n" {
		t.Errorf("the init is not as it should be: %q", got)
	}
	if !strings.Contains(got["stderr"], "ermission denied") {
		t.Errorf("the init can be looked into: %q", got["stderr"])
	}
	pid, err := bundle.ReadProcess(filepath.Join(l.dir(), bundle.InitFile))
	if err != nil || pid == 0 {
		t.Fatalf("init is not recorded: %d, %v", pid, err)
	}
	smaps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	t.Logf("init:\n%s", smaps)
	if err := l.m.Shutdown(t.Context(), "pod1", l.dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Error("init is left")
	}
	if _, err := os.Stat(l.shim.PIDNamespace); err == nil {
		t.Error("PID namespace is left")
	}
}

// What is told of an end that nobody saw is told again by the next daemon.
func TestKeepExit(t *testing.T) {
	dir := t.TempDir()
	m := NewManager(Config{State: dir, Bundle: func(string) string { return dir }, SandboxBundle: func(string) string { return filepath.Join(dir, "none") }})
	t.Cleanup(func() { _ = m.Close() })
	first := Exit{Code: exitUnknown, At: time.Unix(1, 0).UTC(), Unknown: true}
	for _, e := range []Exit{first, {Code: exitUnknown, At: time.Unix(2, 0).UTC(), Unknown: true}} {
		if got, err := m.KeepExit("c", e); err != nil || got != first {
			t.Errorf("keep %+v: %+v, %v, want %+v", e, got, err, first)
		}
	}
}
