// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var probes = []check{
	{name: "Readiness: exec probe, ready and not ready again", run: execReadiness},
	{name: "Readiness: TCP probe", run: tcpReadiness},
	{name: "Readiness: HTTP probe", run: httpReadiness},
	{name: "Readiness: gRPC probe", run: grpcReadiness},
	{name: "Start-up probe: holds liveness and readiness back", run: startup},
	{name: "Liveness: a failing probe restarts the container", run: liveness},
	{name: "Liveness: an exec probe that hangs is ended at its time-out", run: hangingProbe},
}

// turnsReady starts a pod, waits for an unready answer of its probe, runs a script in it that
// makes the next answer good, and waits until the pod is ready.
func (e *env) turnsReady(ctx context.Context, p *core.Pod, script string) error {
	if err := e.create(ctx, p); err != nil {
		return err
	}
	if err := e.event(ctx, p.Name, "Unhealthy", "Readiness probe failed"); err != nil {
		return err
	}
	pod, err := e.client.CoreV1().Pods(e.ns).Get(ctx, p.Name, getOptions)
	if err != nil {
		return err
	}
	if isReady(pod) {
		return errors.New("the pod is ready although its probe fails")
	}
	if _, err := e.exec(ctx, p.Name, script); err != nil {
		return err
	}
	_, err = e.ready(ctx, p.Name)
	return err
}

// unready waits until a pod is not ready any more.
func (e *env) unready(ctx context.Context, name string) error {
	_, err := e.podUntil(ctx, name, "unready", func(p *core.Pod) (bool, error) { return !isReady(p), nil })
	return err
}

func execReadiness(ctx context.Context, e *env) error {
	p := shell("probed", forever)
	first(p).ReadinessProbe = execProbe("test", "-e", "/tmp/good")
	if err := e.turnsReady(ctx, p, "touch /tmp/good"); err != nil {
		return err
	}
	if _, err := e.exec(ctx, "probed", "rm /tmp/good"); err != nil {
		return err
	}
	return e.unready(ctx, "probed")
}

func tcpReadiness(ctx context.Context, e *env) error {
	p := shell("probed", "until [ -e /tmp/good ]; do sleep 0.1; done; exec httpd -f -p 8080 -h /www")
	first(p).ReadinessProbe = probe(core.ProbeHandler{TCPSocket: &core.TCPSocketAction{Port: intstr.FromInt32(8080)}})
	return e.turnsReady(ctx, p, "touch /tmp/good")
}

func httpReadiness(ctx context.Context, e *env) error {
	p := shell("probed", "mkdir -p /tmp/www; exec httpd -f -p 8080 -h /tmp/www")
	first(p).ReadinessProbe = httpProbe("/good")
	return e.turnsReady(ctx, p, "mkdir -p /tmp/www; touch /tmp/www/good")
}

func grpcReadiness(ctx context.Context, e *env) error {
	p := shell("probed", "")
	c := first(p)
	c.Image, c.Command, c.Args = agnhost, nil, []string{"grpc-health-checking"}
	c.ReadinessProbe = probe(core.ProbeHandler{GRPC: &core.GRPCAction{Port: 5000}})
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	if _, err := e.exec(ctx, "probed", "wget -q -O /dev/null http://127.0.0.1:8080/make-not-serving"); err != nil {
		return err
	}
	return e.unready(ctx, "probed")
}

func startup(ctx context.Context, e *env) error {
	p := shell("slow", forever)
	p.Spec.RestartPolicy = core.RestartPolicyAlways
	c := first(p)
	c.StartupProbe = execProbe("test", "-e", "/tmp/started")
	c.StartupProbe.FailureThreshold = 100
	// Would have the container killed at once if it were asked before the start is over.
	c.LivenessProbe = execProbe("test", "-e", "/tmp/started")
	if err := e.create(ctx, p); err != nil {
		return err
	}
	if err := e.event(ctx, "slow", "Unhealthy", "Startup probe failed"); err != nil {
		return err
	}
	pod, err := e.client.CoreV1().Pods(e.ns).Get(ctx, "slow", getOptions)
	if err != nil {
		return err
	}
	if s := status(pod, mainName); s.Started == nil || *s.Started || s.Ready {
		return errors.New("the container counts as started or ready before its start-up probe succeeded")
	}
	if _, err := e.exec(ctx, "slow", "touch /tmp/started"); err != nil {
		return err
	}
	pod, err = e.ready(ctx, "slow")
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 0)
}

func liveness(ctx context.Context, e *env) error {
	p := shell("mortal", forever)
	p.Spec.RestartPolicy = core.RestartPolicyAlways
	first(p).LivenessProbe = execProbe("test", "!", "-e", "/tmp/sick")
	if _, err := e.start(ctx, p); err != nil {
		return err
	}
	if _, err := e.exec(ctx, "mortal", "touch /tmp/sick"); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, "mortal", "restarted", func(p *core.Pod) (bool, error) {
		return status(p, mainName).RestartCount == 1 && isReady(p), nil
	})
	if err != nil {
		return err
	}
	last := status(pod, mainName).LastTerminationState.Terminated
	if last == nil || last.ExitCode != 137 {
		return errors.New("the first run should have ended by SIGKILL:\n" + state(pod))
	}
	// A new container has a new root file system.
	if _, err := e.exec(ctx, "mortal", "test ! -e /tmp/sick"); err != nil {
		return err
	}
	return e.event(ctx, "mortal", "Killing", "failed liveness probe")
}

func hangingProbe(ctx context.Context, e *env) error {
	p := shell("probed", forever)
	first(p).ReadinessProbe = execProbe("sh", "-c", "exec sleep 7777")
	first(p).ReadinessProbe.TimeoutSeconds = 1
	if err := e.create(ctx, p); err != nil {
		return err
	}
	if err := e.event(ctx, "probed", "Unhealthy", "timed out"); err != nil {
		return err
	}
	// At most the next probe's process runs, not one of each before.
	if err := e.event(ctx, "probed", "Unhealthy", "Readiness probe"); err != nil {
		return err
	}
	out, err := e.exec(ctx, "probed", "pgrep -c -f '^sleep 7777' || true")
	if err != nil {
		return err
	}
	if n := strings.TrimSpace(out); n != "0" && n != "1" {
		return errors.New("processes of probes that timed out are left: " + n)
	}
	return nil
}
