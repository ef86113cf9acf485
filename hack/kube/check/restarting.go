// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

var restarting = []check{
	{name: "restartPolicy OnFailure: until it succeeds", run: onFailure},
	{name: "restartPolicyRules: restarts for one exit code only", run: restartRules},
	{name: "restartPolicyRules RestartAllContainers: the pod starts anew, in place", run: restartAll},
	{name: "Crash loop: back-off, reason and messages", run: crashLoop},
}

// reapplied is a pod whose script knows in $n which run it is, with a restart policy.
func reapplied(policy core.RestartPolicy, script string) *core.Pod {
	p := counting("again", script)
	p.Spec.RestartPolicy = policy
	return p
}

func onFailure(ctx context.Context, e *env) error {
	if err := e.prints(ctx, reapplied(core.RestartPolicyOnFailure, "echo run $n; [ $n -ge 2 ]"), "run 2"); err != nil {
		return err
	}
	pod, err := e.client.CoreV1().Pods(e.ns).Get(ctx, "again", getOptions)
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 1)
}

func restartRules(ctx context.Context, e *env) error {
	p := reapplied(core.RestartPolicyNever, "[ $n -gt 1 ] || exit 42; exit 43")
	ruled(first(p), core.ContainerRestartRuleActionRestart)
	if err := e.create(ctx, p); err != nil {
		return err
	}
	pod, err := e.ended(ctx, p.Name)
	if err != nil {
		return err
	}
	return errors.Join(
		equal("phase", pod.Status.Phase, core.PodFailed),
		equal("restarts", status(pod, mainName).RestartCount, 1),
		equal("exit code of the last run", terminated(pod, mainName).ExitCode, 43))
}

// ruled gives a container a rule for the exit code 42.
func ruled(c *core.Container, action core.ContainerRestartRuleAction) {
	c.RestartPolicy = ptr.To(core.ContainerRestartPolicyNever)
	c.RestartPolicyRules = []core.ContainerRestartRule{{
		Action: action,
		ExitCodes: &core.ContainerRestartRuleOnExitCodes{
			Operator: core.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42},
		},
	}}
}

func restartAll(ctx context.Context, e *env) error {
	p := counting("again", "[ $n -gt 1 ] || exit 42; "+forever)
	p.Spec.RestartPolicy = core.RestartPolicyNever
	ruled(first(p), core.ContainerRestartRuleActionRestartAllContainers)
	p.Spec.Containers = append(p.Spec.Containers, container("second", forever))
	p.Spec.InitContainers = []core.Container{container("init", "echo init >> /count/inits")}
	p.Spec.InitContainers[0].VolumeMounts = first(p).VolumeMounts
	if err := e.create(ctx, p); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, p.Name, "started anew", func(p *core.Pod) (bool, error) {
		return status(p, "second").RestartCount == 1 && isReady(p), nil
	})
	if err != nil {
		return err
	}
	out, err := e.exec(ctx, p.Name, "wc -l < /count/inits")
	return errors.Join(err,
		equal("runs of the init container", strings.TrimSpace(out), "2"),
		equal("restarts of the first", status(pod, mainName).RestartCount, 1),
		equal("restarts of init", status(pod, "init").RestartCount, 1))
}

func crashLoop(ctx context.Context, e *env) error {
	p := reapplied(core.RestartPolicyAlways, "echo because $n > /dev/termination-log; exit 13")
	if err := e.create(ctx, p); err != nil {
		return err
	}
	pod, err := e.podUntil(ctx, p.Name, "backed off", func(p *core.Pod) (bool, error) {
		return waiting(p, mainName).Reason == "CrashLoopBackOff" && status(p, mainName).RestartCount >= 1, nil
	})
	if err != nil {
		return err
	}
	s := status(pod, mainName)
	last := s.LastTerminationState.Terminated
	if last == nil {
		return errors.New("the status does not tell how the last run ended")
	}
	return errors.Join(
		equal("exit code", last.ExitCode, 13),
		equal("termination message", last.Message, fmt.Sprintf("because %d\n", s.RestartCount+1)),
		contains("the message", s.State.Waiting.Message, "back-off ", "restarting failed container="+mainName, "pod="+p.Name),
		e.event(ctx, p.Name, "BackOff", "Back-off restarting failed container"))
}
