// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

func (t *tour) kill(ctx context.Context) (string, error) {
	n := t.Nodes[1]
	if err := n.KillRuntime(ctx); err != nil {
		return "", err
	}
	if err := t.hello(ctx, n); err != nil {
		return "", err
	}
	return "", t.kept(ctx)
}

// hello runs a command in a pod of a node; kubelet's connection to a runtime that has just come
// back takes a moment.
func (t *tour) hello(ctx context.Context, n *cluster.Node) error {
	return eventually(ctx, func() error {
		out, err := t.Kubectl(ctx, "exec", t.on(n)[0].Name, "--", "echo", "hello").CombinedOutput()
		if err != nil || string(out) != "hello\n" {
			return fmt.Errorf("exec on %s: %w: %s", n.Name, err, out)
		}
		return nil
	})
}

func (t *tour) without(ctx context.Context) (string, error) {
	n := t.Nodes[1]
	if err := n.StopRuntime(syscall.SIGKILL); err != nil {
		return "", err
	}
	return "", eventually(ctx, func() error {
		out, err := t.Kubectl(ctx, "wait", "--for=condition=Ready=false", "node/"+n.Name, "--timeout=60s").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

func (t *tour) back(ctx context.Context) (string, error) {
	n := t.Nodes[1]
	if err := n.StartRuntime(ctx); err != nil {
		return "", err
	}
	if err := t.WaitReady(ctx, n); err != nil {
		return "", err
	}
	if err := t.kept(ctx); err != nil {
		return "", err
	}
	return "", t.hello(ctx, n)
}

// reboot cuts a node's power and boots it: its pods get new containers, the others keep theirs.
func (t *tour) reboot(ctx context.Context) (string, error) {
	n, other := t.Nodes[0], t.Nodes[1]
	mine, theirs := containers(t.on(n)), containers(t.on(other))
	if err := n.Reboot(ctx); err != nil {
		return "", err
	}
	err := eventually(ctx, func() error {
		if err := t.settle(ctx); err != nil {
			return err
		}
		for _, c := range containers(t.on(n)) {
			if slices.Contains(mine, c) {
				return fmt.Errorf("a container of before the reboot is still named: %s", c)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if now := containers(t.on(other)); !slices.Equal(theirs, now) {
		return "", fmt.Errorf("on %s containers were %v, are %v", other.Name, theirs, now)
	}
	if err := t.WaitReady(ctx, n); err != nil {
		return "", err
	}
	if err := t.hello(ctx, n); err != nil {
		return "", err
	}
	_, err = t.service(ctx)
	return fmt.Sprintf("%d containers are new", len(mine)), err
}

// scale changes how many pods there are to be.
func (t *tour) scale(ctx context.Context, to int) error {
	out, err := t.Kubectl(ctx, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", to)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	t.want = to
	return nil
}

// seen waits until some pods of a node have started to become.
func (t *tour) seen(ctx context.Context, n *cluster.Node, some int) error {
	c, err := harness.Dial(n.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return eventually(ctx, func() error {
		r, err := c.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: running})
		if err == nil && len(r.GetItems()) < some {
			err = fmt.Errorf("%s has %d sandboxes", n.Name, len(r.GetItems()))
		}
		return err
	})
}

// killedMeanwhile kills a runtime three times while many pods start on its node.
func (t *tour) killedMeanwhile(ctx context.Context) (string, error) {
	n := t.Nodes[1]
	before := len(t.on(n))
	if err := t.scale(ctx, many); err != nil {
		return "", err
	}
	for i := range 3 {
		if err := t.seen(ctx, n, before+i); err != nil {
			return "", err
		}
		if err := n.KillRuntime(ctx); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d pods, killed 3 times", many), t.upAndFewer(ctx)
}

// powerCutMeanwhile reboots a node while many pods start on it.
func (t *tour) powerCutMeanwhile(ctx context.Context) (string, error) {
	n := t.Nodes[0]
	before := len(t.on(n))
	if err := t.scale(ctx, many); err != nil {
		return "", err
	}
	if err := t.seen(ctx, n, before+2); err != nil {
		return "", err
	}
	if err := n.Reboot(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pods", many), t.upAndFewer(ctx)
}

// many pods are enough for some to be half done at any time.
const many = 16

// upAndFewer waits until all pods are there and answer, which the API could tell of those of a
// node that has just booted before it is so, and takes most of them away again.
func (t *tour) upAndFewer(ctx context.Context) error {
	if err := t.settle(ctx); err != nil {
		return err
	}
	if _, err := t.service(ctx); err != nil {
		return err
	}
	if err := t.scale(ctx, 4); err != nil {
		return err
	}
	return t.settle(ctx)
}
