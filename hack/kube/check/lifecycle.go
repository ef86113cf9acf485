// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var lifecycle = []check{
	{name: "Init containers: one after the other, before the others", run: initContainers},
	{name: "Init containers: a failing one keeps the pod from starting", run: failingInit},
	{name: "Native sidecar: starts first, ends last, does not keep the pod", run: sidecar},
	{name: "postStart: runs beside the container's start", run: postStart},
	{name: "postStart: a failing one ends the container", run: failingPostStart},
	{name: "preStop: runs before SIGTERM", run: preStop},
	{name: "SIGTERM: the container ends in its grace period, with its own exit code", run: sigterm},
	{name: "SIGKILL: comes when the grace period is over", run: sigkill},
	{name: "stopSignal: the pod's instead of SIGTERM", run: stopSignal},
	{name: "stopSignal: the image's is told and used", run: imageStopSignal},
}

func initContainers(ctx context.Context, e *env) error {
	p := shell("staged", "cat /work/log; echo main")
	volume(p, emptyDir(), core.VolumeMount{Name: "work", MountPath: "/work"})
	for _, name := range []string{"one", "two"} {
		c := container(name, "echo "+name+" >> /work/log; sleep 0.3; echo "+name+" ended >> /work/log")
		c.VolumeMounts = first(p).VolumeMounts
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	return e.prints(ctx, p, "one\none ended\ntwo\ntwo ended\nmain")
}

func failingInit(ctx context.Context, e *env) error {
	p := shell("staged", "echo main")
	p.Spec.InitContainers = []core.Container{container("bad", "exit 5"), container("never", "echo never")}
	if err := e.create(ctx, p); err != nil {
		return err
	}
	last, err := e.ended(ctx, p.Name)
	if err != nil {
		return err
	}
	if status(last, mainName).State.Running != nil || status(last, mainName).ContainerID != "" || status(last, "never").ContainerID != "" {
		return errors.New("a later container has run:\n" + state(last))
	}
	return errors.Join(equal("phase", last.Status.Phase, core.PodFailed), equal("exit code", terminated(last, "bad").ExitCode, 5))
}

func sidecar(ctx context.Context, e *env) error {
	p := shell("staged", "until [ -e /work/side ]; do sleep 0.1; done; cat /work/side; sleep 1; echo main")
	volume(p, emptyDir(), core.VolumeMount{Name: "work", MountPath: "/work"})
	side := container("side", "echo sidecar > /work/side; trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done")
	side.RestartPolicy = ptr.To(core.ContainerRestartPolicyAlways)
	side.VolumeMounts = first(p).VolumeMounts
	side.StartupProbe = execProbe("test", "-e", "/work/side")
	side.StartupProbe.FailureThreshold = 30
	p.Spec.InitContainers = []core.Container{side, container("later", "echo later")}
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	if err := e.prints(ctx, p, "sidecar\nmain"); err != nil {
		return err
	}
	last, err := e.client.CoreV1().Pods(e.ns).Get(ctx, p.Name, getOptions)
	if err != nil {
		return err
	}
	out, err := e.logs(ctx, p.Name, core.PodLogOptions{Container: "side"})
	if err != nil {
		return err
	}
	begun, ended := terminated(last, "side"), terminated(last, mainName)
	if begun.StartedAt.After(ended.StartedAt.Time) || begun.FinishedAt.Time.Before(ended.FinishedAt.Time) {
		return fmt.Errorf("the sidecar ran from %s to %s, the container from %s to %s",
			begun.StartedAt, begun.FinishedAt, ended.StartedAt, ended.FinishedAt)
	}
	return errors.Join(equal("sidecar's exit code", begun.ExitCode, 0), equal("sidecar's log", out, "ended\n"))
}

// hook is a handler that runs a shell script.
func hook(script string) *core.LifecycleHandler {
	return &core.LifecycleHandler{Exec: &core.ExecAction{Command: []string{"sh", "-ec", script}}}
}

func postStart(ctx context.Context, e *env) error {
	p := shell("hooked", "until [ -e /tmp/hook ]; do sleep 0.1; done; cat /tmp/hook")
	first(p).Lifecycle = &core.Lifecycle{PostStart: hook("echo hook > /tmp/hook.new; mv /tmp/hook.new /tmp/hook")}
	return e.prints(ctx, p, "hook")
}

func failingPostStart(ctx context.Context, e *env) error {
	p := shell("hooked", "exec sleep 3600")
	first(p).Lifecycle = &core.Lifecycle{PostStart: hook("exit 9")}
	if err := e.create(ctx, p); err != nil {
		return err
	}
	last, err := e.ended(ctx, p.Name)
	if err != nil {
		return err
	}
	return errors.Join(equal("exit code", terminated(last, mainName).ExitCode, 137), e.event(ctx, p.Name, "FailedPostStartHook", ""))
}

// ending is what a pod did from its deletion on.
type ending struct {
	log  string
	last core.ContainerStateTerminated
	took time.Duration
}

// deleted starts a pod, waits until it has printed "ready", deletes it, and tells what happened.
func (e *env) deleted(ctx context.Context, p *core.Pod) (ending, error) {
	var end ending
	if _, err := e.start(ctx, p); err != nil {
		return end, err
	}
	stream, err := e.following(ctx, p.Name)
	if err != nil {
		return end, err
	}
	defer func() { _ = stream.Close() }()
	greeting := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(stream, greeting); err != nil {
		return end, err
	}
	if err := equal("greeting", string(greeting), "ready\n"); err != nil {
		return end, err
	}
	begin := time.Now()
	if err := e.delete(ctx, p.Name); err != nil {
		return end, err
	}
	pod, err := e.gonePod(ctx, p.Name)
	if err != nil {
		return end, err
	}
	end.took, end.last = time.Since(begin), terminated(pod, mainName)
	rest, err := io.ReadAll(stream)
	end.log = string(rest)
	return end, err
}

// loop lets a shell wait for a signal.
const loop = "echo ready; while :; do sleep 0.1; done"

func preStop(ctx context.Context, e *env) error {
	p := shell("hooked", "trap 'echo term; exit 3' TERM; "+loop)
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	first(p).Lifecycle = &core.Lifecycle{PreStop: hook("echo hook > /proc/1/fd/1; sleep 1; echo over > /proc/1/fd/1")}
	end, err := e.deleted(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(equal("log", end.log, "hook\nover\nterm\n"), equal("exit code", end.last.ExitCode, 3))
}

func sigterm(ctx context.Context, e *env) error {
	p := shell("polite", "trap 'sleep 1; echo bye; exit 6' TERM; "+loop)
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	end, err := e.deleted(ctx, p)
	if err != nil {
		return err
	}
	if end.took > 15*time.Second {
		err = fmt.Errorf("it took %s, so the grace period was waited for", end.took)
	}
	return errors.Join(err, equal("log", end.log, "bye\n"), equal("exit code", end.last.ExitCode, 6))
}

func sigkill(ctx context.Context, e *env) error {
	p := shell("stubborn", "trap 'echo no' TERM; "+loop)
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](3)
	end, err := e.deleted(ctx, p)
	if err != nil {
		return err
	}
	if end.took < 3*time.Second || end.took > 20*time.Second {
		err = fmt.Errorf("it took %s with a grace period of 3 s", end.took)
	}
	return errors.Join(err, equal("log", end.log, "no\n"), equal("exit code", end.last.ExitCode, 137), equal("reason", end.last.Reason, "Error"))
}

func stopSignal(ctx context.Context, e *env) error {
	p := shell("signalled", "trap 'echo term; exit 1' TERM; trap 'echo usr1; exit 8' USR1; "+loop)
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	p.Spec.OS = &core.PodOS{Name: core.Linux}
	first(p).Lifecycle = &core.Lifecycle{StopSignal: ptr.To(core.SIGUSR1)}
	end, err := e.deleted(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(equal("log", end.log, "usr1\n"), equal("exit code", end.last.ExitCode, 8))
}

func imageStopSignal(ctx context.Context, e *env) error {
	p := shell("web", "")
	c := first(p)
	// The image says SIGQUIT.
	c.Image, c.Command = nginx, []string{"sh", "-ec", "trap 'echo term; exit 1' TERM; trap 'echo quit; exit 0' QUIT; " + loop}
	p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](20)
	end, err := e.deleted(ctx, p)
	if err != nil {
		return err
	}
	return errors.Join(equal("log", end.log, "quit\n"), equal("exit code", end.last.ExitCode, 0),
		e.toldStopSignal(ctx))
}

// toldStopSignal looks for the image's signal in the status.
func (e *env) toldStopSignal(ctx context.Context) error {
	p := shell("told", "")
	first(p).Image, first(p).Command = nginx, []string{"sh", "-c", forever}
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	s := status(pod, mainName).StopSignal
	if s == nil || *s != core.SIGQUIT {
		return fmt.Errorf("the status should tell SIGQUIT: %v", s)
	}
	return nil
}
