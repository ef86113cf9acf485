// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/sandflow-cri/sandflow/steps/runtime/bundle"
)

// Annotations by which foreign shims know pods.
const (
	annotationSandbox = "io.kubernetes.cri.sandbox-id"
	annotationType    = "io.kubernetes.cri.container-type"
)

// labelPod on containerd's containers says to which pod they belong.
const labelPod = "io.sandflow.pod"

// foreignCreateTimeout bounds a creation whose caller has gone.
const foreignCreateTimeout = 2 * time.Minute

// foreignDrain is how long after a container's end its output may go on.
const foreignDrain = 3 * time.Second

// foreignTasks are the tasks of a pod with a foreign runtime, through containerd's task API.
type foreignTasks struct {
	foreign *foreign
	pod     Pod
	handler Handler
}

// Create makes the container. If ctx ends first the creation goes on, and Delete
// waits for it: containerd may finish what it was asked for after its caller has gone.
func (t *foreignTasks) Create(ctx context.Context, r CreateRequest) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	type result struct {
		pid int
		err error
	}
	done, finish := make(chan result, 1), t.foreign.m.beginCreate(r.ID)
	go func() {
		defer finish()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), foreignCreateTimeout)
		defer cancel()
		defer context.AfterFunc(t.foreign.ctx, cancel)() //nolint:contextcheck // ends with the manager too
		pid, err := t.create(ctx, r)
		if t.foreign.ctx.Err() == nil {
			err = errors.Join(err, endCreate(r.Bundle))
		}
		done <- result{pid, err}
	}()
	select {
	case res := <-done:
		return res.pid, res.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (t *foreignTasks) create(ctx context.Context, r CreateRequest) (int, error) {
	client, ctx, err := t.foreign.client(ctx)
	if err != nil {
		return 0, err
	}
	spec, err := bundle.ReadSpec(r.Bundle)
	if err != nil {
		return 0, err
	}
	t.annotate(spec, r.ID)
	options, err := runtimeOptions(t.handler, filepath.Join(t.foreign.m.cfg.State, "runc"))
	if err != nil {
		return 0, err
	}
	if err := bundle.RemoveExit(r.Bundle); err != nil {
		return 0, err
	}
	record := foreignRecord{Terminal: r.Terminal, Stdin: r.Stdin, StdinOnce: r.StdinOnce, LogPath: r.LogPath, LogDir: r.LogDir}
	if err := errors.Join(makeFIFOs(r.Bundle, record), bundle.WriteForeign(r.Bundle, record)); err != nil {
		return 0, err
	}
	c, err := t.record(ctx, client, r.ID, options, spec)
	if err != nil {
		return 0, err
	}
	release, err := keepFIFOsOpen(r.Bundle, record)
	if err != nil {
		return 0, err
	}
	if r.Checkpoint == "" {
		defer release()
	} else {
		t.foreign.hold(r.ID, release)
	}
	if _, err := t.foreign.hub(ctx, r.ID); err != nil {
		return 0, err
	}
	rootfs := []mount.Mount{{Type: "bind", Source: filepath.Join(r.Bundle, "rootfs"), Options: []string{"rbind", "rw"}}}
	opts := append(restoreOptions(r), containerd.WithRootFS(rootfs))
	task, err := c.NewTask(ctx, fifoIO{r.Bundle, record}.creator, opts...)
	if err != nil {
		return 0, err
	}
	pid := int(task.Pid())
	if pid == 0 {
		return 0, nil // to be restored
	}
	return pid, noteMemory(ctx, r.Bundle, record, pid)
}

// record makes containerd's record of a container. NewContainer of the client would hold a lease
// of its own meanwhile, which nobody would give back after a crash; nothing here needs one.
func (t *foreignTasks) record(ctx context.Context, client *containerd.Client, id string, options any, spec *specs.Spec) (containerd.Container, error) {
	c := containers.Container{ID: id}
	for _, set := range []containerd.NewContainerOpts{
		containerd.WithContainerLabels(map[string]string{labelPod: t.pod.ID}),
		containerd.WithRuntime(t.handler.Type, options), containerd.WithSpec(spec),
	} {
		if err := set(ctx, client, &c); err != nil {
			return nil, err
		}
	}
	if _, err := client.ContainerService().Create(ctx, c); err != nil {
		return nil, err
	}
	return client.LoadContainer(ctx, id)
}

// noteMemory records the memory cgroup of a container.
func noteMemory(ctx context.Context, dir string, record foreignRecord, pid int) error {
	var err error
	if record.Memory, err = bundle.MemoryCgroup(pid); err != nil {
		klog.FromContext(ctx).Error(err, "Out-of-memory kills will not be seen", "container", filepath.Base(dir))
	}
	return bundle.WriteForeign(dir, record)
}

// endCreate notes that nothing of the creation is on its way any more.
func endCreate(dir string) error {
	var r foreignRecord
	err := bundle.ReadForeign(dir, &r)
	if errdefs.IsNotFound(err) {
		return nil // it had not begun
	}
	r.Ended = true
	return errors.Join(err, bundle.WriteForeign(dir, r))
}

// annotate tells the foreign shim to which pod the container belongs.
func (t *foreignTasks) annotate(s *specs.Spec, id string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	kind := "container"
	if id == t.pod.ID {
		kind = "sandbox"
	}
	s.Annotations[annotationSandbox], s.Annotations[annotationType] = t.pod.ID, kind
}

func (t *foreignTasks) Start(ctx context.Context, id string) error {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return err
	}
	err = task.Start(ctx)
	if restored := t.foreign.letGo(id); err != nil || !restored {
		return err
	}
	dir, record := t.foreign.m.bundle(id), foreignRecord{}
	if err := bundle.ReadForeign(dir, &record); err != nil {
		return err
	}
	return noteMemory(ctx, dir, record, int(task.Pid()))
}

func (t *foreignTasks) Kill(ctx context.Context, id string, signal uint32, all bool) error {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return err
	}
	var opts []containerd.KillOpts
	if all {
		opts = append(opts, containerd.WithKillAll)
	}
	return task.Kill(ctx, syscall.Signal(signal), opts...)
}

func (t *foreignTasks) Delete(ctx context.Context, id, dir string) (Exit, error) {
	if err := t.foreign.m.awaitCreate(ctx, id); err != nil {
		return Exit{}, fmt.Errorf("delete container %s: its creation has not ended: %w", id, err)
	}
	killed, err := t.deleteContainer(ctx, id, dir)
	if err != nil && ctx.Err() == nil {
		// A shim that ends in the middle fails its deletion, and only then does containerd see that it has gone.
		var k bool
		k, err = t.deleteContainer(ctx, id, dir)
		killed = killed || k
	}
	var r foreignRecord
	if err == nil && bundle.ReadForeign(dir, &r) == nil && !r.Ended {
		err = t.deleteLate(ctx, id, dir)
	}
	if err != nil {
		return Exit{}, fmt.Errorf("delete container %s: %w", id, err)
	}
	t.foreign.forget(id)
	if err := bundle.RemoveCgroup(ctx, dir); err != nil {
		return Exit{}, err
	}
	return keptExit(dir, killed)
}

// deleteContainer deletes the container and its task, as far as they are there.
func (t *foreignTasks) deleteContainer(ctx context.Context, id, dir string) (killed bool, err error) {
	client, ctx, err := t.foreign.client(ctx)
	if err != nil {
		return false, err
	}
	c, err := client.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if killed, err = t.deleteTask(ctx, c, dir); err != nil {
		return killed, err
	}
	var r foreignRecord
	if bundle.ReadForeign(dir, &r) == nil && !r.Ended {
		time.Sleep(lateCreate / 4) // a task that is being made is not listed, and cannot be found without its container
		k, err := t.deleteTask(ctx, c, dir)
		if killed = killed || k; err != nil {
			return killed, err
		}
	}
	if err := c.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
		return killed, err
	}
	return killed, nil
}

// deleteTask kills the task if it runs, notes its exit and deletes it.
func (t *foreignTasks) deleteTask(ctx context.Context, c containerd.Container, dir string) (killed bool, err error) {
	task, err := c.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	status, err := task.Status(ctx)
	if err == nil && status.Status != containerd.Stopped {
		wait, err := task.Wait(ctx)
		if err != nil {
			return false, err
		}
		if err := task.Kill(ctx, unix.SIGKILL, containerd.WithKillAll); err != nil && !errdefs.IsNotFound(err) {
			return false, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		killed = true
	}
	if s, err := task.Status(ctx); err == nil && s.Status == containerd.Stopped {
		if _, err := t.noteExit(c.ID(), dir, s.ExitStatus, s.ExitTime); err != nil {
			return killed, err
		}
	}
	_, err = task.Delete(ctx, containerd.WithProcessKill)
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return killed, err
}

// noteExit keeps the exit in the bundle, once, after the last output has been logged.
func (t *foreignTasks) noteExit(id, dir string, code uint32, at time.Time) (Exit, error) {
	if hub, err := t.foreign.hub(t.foreign.ctx, id); err == nil {
		hub.Finish(foreignDrain)
	}
	if e, err := bundle.ReadExit(dir); err == nil {
		return Exit(e), nil
	}
	e := bundle.Exit{Code: code, At: at}
	var r foreignRecord
	if bundle.ReadForeign(dir, &r) == nil {
		kills, err := bundle.OOMKills(r.Memory)
		e.OOMKilled = err == nil && kills > 0
	}
	return Exit(e), bundle.WriteExit(dir, e)
}

func (t *foreignTasks) Wait(ctx context.Context, id string) (Exit, error) {
	dir := t.foreign.m.bundle(id)
	task, nctx, err := t.foreign.task(ctx, id)
	if err == nil {
		if _, err := t.foreign.hub(ctx, id); err != nil { // also takes its output up after a restart
			klog.FromContext(ctx).Error(err, "Take up the output", "container", id)
		}
		var status <-chan containerd.ExitStatus
		if status, err = task.Wait(nctx); err == nil {
			s := <-status
			if err = s.Error(); err == nil {
				return t.noteExit(id, dir, s.ExitCode(), s.ExitTime())
			}
		}
	}
	if e, kept := bundle.ReadExit(dir); kept == nil && ctx.Err() == nil {
		return Exit(e), nil
	}
	return Exit{}, err
}

func (t *foreignTasks) State(ctx context.Context, id string) (State, error) {
	dir := t.foreign.m.bundle(id)
	kept, kerr := bundle.ReadExit(dir)
	task, nctx, err := t.foreign.task(ctx, id)
	if err != nil {
		if kerr == nil && ctx.Err() == nil {
			return State{Status: StatusStopped, Exit: Exit(kept)}, nil
		}
		return State{}, err
	}
	s, err := task.Status(nctx)
	if err != nil {
		return State{}, err
	}
	out := State{Status: Status(s.Status), PID: int(task.Pid())}
	switch s.Status {
	case containerd.Stopped:
		out.Exit = Exit{Code: s.ExitStatus, At: s.ExitTime}
		if kerr == nil {
			out.Exit = Exit(kept)
		}
	case containerd.Pausing:
		out.Status = StatusPaused
	case containerd.Created, containerd.Running, containerd.Paused, containerd.Unknown:
	}
	return out, nil
}

func (t *foreignTasks) Pids(ctx context.Context, id string) ([]int, error) {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return nil, err
	}
	infos, err := task.Pids(ctx)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(infos))
	for _, i := range infos {
		pids = append(pids, int(i.Pid))
	}
	return pids, nil
}

func (t *foreignTasks) Update(ctx context.Context, id string, r *specs.LinuxResources, annotations map[string]string) error {
	task, ctx, err := t.foreign.task(ctx, id)
	if err != nil {
		return err
	}
	return task.Update(ctx, containerd.WithResources(r), containerd.WithAnnotations(annotations))
}

func (t *foreignTasks) ReopenLog(ctx context.Context, id string) error {
	hub, err := t.foreign.hub(ctx, id)
	if err != nil {
		return err
	}
	return hub.Reopen()
}
