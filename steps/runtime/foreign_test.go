// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

// newForeignLab is a pod under the stock runc shim of a containerd of its own.
func newForeignLab(t *testing.T, services ...containerd.ServicesOpt) *lab {
	t.Helper()
	runc := runtimetest.Root(t)
	address, shim := runtimetest.Containerd(t)
	client, err := containerd.New(address, containerd.WithServices(services...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	l := &lab{T: t, state: runtimetest.State(t), pod: Pod{ID: "pod1", Handler: "stock"}}
	l.m = NewManager(Config{
		State: l.state, Client: func() *containerd.Client { return client }, Namespace: "test",
		Handlers: map[string]Handler{"stock": {Type: shim, Binary: runc}},
	})
	t.Cleanup(func() { _ = l.m.Close() })
	if l.tasks, err = l.m.Tasks(l.pod); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestForeignRuntime(t *testing.T) {
	l := newForeignLab(t)
	id := l.script("echo out; echo err >&2; printf rest; exit 7")
	if e := l.wait(id); e.Code != 7 {
		t.Errorf("exit %+v, want 7", e)
	}
	if got := l.logged(id); got["stdout"] != "out\nrest" || got["stderr"] != "err\n" {
		t.Errorf("log %q", got)
	}
	if err := l.tasks.ReopenLog(t.Context(), id); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reopen after exit: %v", err)
	}
	for range 2 {
		if e := l.delete(id); e.Code != 7 {
			t.Errorf("delete gives %+v", e)
		}
	}
	if err := l.tasks.Kill(t.Context(), id, uint32(unix.SIGTERM), false); !errdefs.IsNotFound(err) {
		t.Errorf("kill after delete: %v", err)
	}
	id = l.script("sleep 1000")
	if e := l.delete(id); e.Code != 137 {
		t.Errorf("delete of a running container gives %+v", e)
	}
}

func TestForeignExec(t *testing.T) {
	l := newForeignLab(t)
	id := l.script("sleep 1000")
	if out, code, err := l.exec(t.Context(), id, "e1", "seq 1 100000; exit 3"); err != nil || code != 3 || !strings.HasSuffix(out, "\n100000\n") {
		t.Errorf("exec: code %d, %v, %d bytes", code, err, len(out))
	}
	var out bytes.Buffer
	code, err := l.tasks.Exec(t.Context(), ExecRequest{ID: id, ExecID: "e2", Process: process("cat"), Stdin: strings.NewReader("in"), Stdout: &out})
	if err != nil || code != 0 || out.String() != "in" {
		t.Errorf("exec with stdin: %q, %d, %v", out.String(), code, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, _, err := l.exec(ctx, id, "e3", "sleep 1234; true"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec past its deadline: %v", err)
	}
	if out, _, err := l.exec(t.Context(), id, "e4", "cat /proc/[0-9]*/cmdline"); err != nil || strings.Contains(out, "1234") {
		t.Errorf("a killed exec left processes: %q, %v", out, err)
	}
	l.delete(id)
}

func TestForeignStreamsSurviveARestart(t *testing.T) { // cases 24 and 35
	l := newForeignLab(t)
	id := l.run(nil, CreateRequest{Stdin: true}, "cat")
	say := func(word string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, w := io.Pipe()
		go func() { _ = l.tasks.Attach(ctx, id, AttachRequest{Stdin: r}) }()
		if _, err := io.WriteString(w, word+"\n"); err != nil {
			t.Fatal(err)
		}
		l.awaitLog(id, word)
	}
	say("first")
	old := l.m
	l.m = NewManager(old.cfg)
	_ = old.Close()
	var err error
	if l.tasks, err = l.m.Tasks(l.pod); err != nil {
		t.Fatal(err)
	}
	say("second")
	if s, err := l.tasks.State(t.Context(), id); err != nil || s.Status != StatusRunning {
		t.Errorf("state %+v, %v", s, err)
	}
	l.delete(id)
}

func TestForeignOOM(t *testing.T) { // case 14
	l := newForeignLab(t)
	limit := int64(32 << 20)
	id := l.run(func(s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
	}, CreateRequest{}, "sh", "-c", "exec tail /dev/zero")
	if e := l.wait(id); e.Code != 137 || !e.OOMKilled {
		t.Errorf("exit %+v", e)
	}
	l.delete(id)
	if _, err := os.Stat(l.bundle(id)); err != nil {
		t.Error(err)
	}
}

// A daemon with containerd inside dies while the shim of a container is being started.
func TestForeignShimThatComesLate(t *testing.T) {
	l := newForeignLab(t)
	address, program := filepath.Join(l.state, "dead.sock"), l.m.cfg.Handlers["stock"].Type
	const id = "late"
	dir := l.bundle(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(bundle.WriteSpec(dir, &specs.Spec{Version: "1.0.2"}), bundle.WriteForeign(dir, foreignRecord{})); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(dir, "log") // where a shim writes its log for containerd
	if err := unix.Mkfifo(logs, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(logs, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	params, err := proto.Marshal(&bootstrap.BootstrapParams{InstanceID: id, Namespace: "test", ContainerdGrpcAddress: address})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-namespace", "test", "-address", address, "-publish-binary", "/bin/true", "-id", id, "start")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(params)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := shimsOf(t, id); n != 1 {
		t.Fatalf("%d shims before", n)
	}
	l.delete(id)
	if n := shimsOf(t, id); n != 0 {
		t.Errorf("%d shims are left", n)
	}
	socket, err := shim.SocketAddress(namespaces.WithNamespace(t.Context(), "test"), address, id, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(strings.TrimPrefix(socket, "unix://")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its socket: %v", err)
	}
}

func shimsOf(t *testing.T, id string) (found int) {
	t.Helper()
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if _, ok := shimArgs(pid, "test", id); ok && err == nil {
			found++
		}
	}
	return found
}

// A pod whose sandbox container has lost its shim is not alive.
func TestForeignShimDies(t *testing.T) {
	l := newForeignLab(t)
	id := l.pod.ID
	dir := l.m.cfg.SandboxBundle(id)
	runtimetest.Bundle(t, dir, id, nil, "sleep", "1000")
	t.Cleanup(func() { _, _ = l.tasks.Delete(context.Background(), id, dir) })
	if _, err := l.tasks.Create(t.Context(), CreateRequest{ID: id, Bundle: dir}); err != nil {
		t.Fatal(err)
	}
	if err := l.tasks.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	gone, err := l.m.Alive(l.pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := killLateShims(t.Context(), "test", id); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(20 * time.Second):
		t.Error("its pod is alive")
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, _, err := l.m.foreign.task(t.Context(), id); errdefs.IsNotFound(err) {
			return // containerd has cleaned up
		}
	}
	t.Error("containerd has its task still")
}

// noLeases is a containerd that gives no lease.
type noLeases struct{ leases.Manager }

func (noLeases) Create(context.Context, ...leases.Opt) (leases.Lease, error) {
	return leases.Lease{}, errors.New("a lease was taken")
}

// A lease that the client takes for itself would be left by a crash.
func TestForeignTakesNoLease(t *testing.T) {
	l := newForeignLab(t, containerd.WithLeasesService(noLeases{}))
	id := l.script("exit 7")
	if e := l.wait(id); e.Code != 7 {
		t.Errorf("exit %+v, want 7", e)
	}
	l.delete(id)
}

// closing is a task service whose shims end in the middle of their first deletion.
type closing struct {
	tasks.TasksClient

	t   *testing.T
	did bool
}

func (c *closing) Delete(ctx context.Context, r *tasks.DeleteTaskRequest, opts ...grpc.CallOption) (*tasks.DeleteResponse, error) {
	if !c.did {
		c.did = true
		if err := killLateShims(ctx, "test", r.GetContainerID()); err != nil {
			c.t.Error(err)
		}
		return nil, errors.New("failed to delete task: ttrpc: closed")
	}
	return c.TasksClient.Delete(ctx, r, opts...)
}

func TestForeignShimEndsDuringDelete(t *testing.T) {
	c := &closing{t: t}
	l := newForeignLab(t, containerd.WithTaskClient(c))
	c.TasksClient = tasks.NewTasksClient(l.m.cfg.Client().Conn().(grpc.ClientConnInterface)) //nolint:forcetypeassert // a client with an address
	id := l.script("exit 7")
	if e := l.wait(id); e.Code != 7 {
		t.Errorf("exit %+v, want 7", e)
	}
	if e := l.delete(id); e.Code != 7 || !c.did {
		t.Errorf("delete gives %+v", e)
	}
}
