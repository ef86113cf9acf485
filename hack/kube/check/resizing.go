// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var resizing = []check{
	{name: "In-place resize: up, without a restart", run: resizeUp},
	{name: "In-place resize: down, without a restart", run: resizeDown},
	{name: "In-place resize: with a restart where the policy says so", run: resizeRestart},
	{name: "In-place resize: of pod-level resources", run: resizePod},
}

// resize changes the limits of a running pod's first container; the requests become the same.
func (e *env) resize(ctx context.Context, pod string, to core.ResourceList) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
		"name": mainName, "resources": core.ResourceRequirements{Requests: to, Limits: to},
	}}}})
	if err != nil {
		return err
	}
	_, err = e.client.CoreV1().Pods(e.ns).Patch(ctx, pod, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "resize")
	return err
}

// size is what a container is to have.
type size struct {
	list core.ResourceList
	want limits
}

var (
	small = size{amounts("cpu", "100m", "memory", "48Mi"), limits{memory: 48 << 20, quota: 100, shares: 102}}
	large = size{amounts("cpu", "200m", "memory", "96Mi"), limits{memory: 96 << 20, quota: 200, shares: 204}}
)

// resized starts a pod of one size, gives it another, and looks at status and cgroup.
func (e *env) resized(ctx context.Context, p *core.Pod, from, to size) (*core.Pod, error) {
	demand(first(p), from.list, from.list)
	if _, err := e.start(ctx, p); err != nil {
		return nil, err
	}
	if err := e.has(ctx, p.Name, from.want); err != nil {
		return nil, err
	}
	if err := e.resize(ctx, p.Name, to.list); err != nil {
		return nil, err
	}
	pod, err := e.podUntil(ctx, p.Name, "resized", func(p *core.Pod) (bool, error) {
		got := status(p, mainName).Resources
		return got != nil && isReady(p) && got.Limits.Cpu().Cmp(*to.list.Cpu()) == 0 && got.Limits.Memory().Cmp(*to.list.Memory()) == 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w\nconditions: %+v", err, pod.Status.Conditions)
	}
	return pod, eventually(ctx, 200*time.Millisecond, func(ctx context.Context) error { return e.has(ctx, p.Name, to.want) })
}

// has compares the limits that a container finds in its cgroup.
func (e *env) has(ctx context.Context, pod string, want limits) error {
	out, err := e.exec(ctx, pod, inside)
	if err != nil {
		return err
	}
	got, err := parsed(out)
	if err != nil {
		return err
	}
	return got.expect(want)
}

func resizeUp(ctx context.Context, e *env) error {
	pod, err := e.resized(ctx, shell("growing", forever), small, large)
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 0)
}

func resizeDown(ctx context.Context, e *env) error {
	pod, err := e.resized(ctx, shell("shrinking", forever), large, small)
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 0)
}

func resizeRestart(ctx context.Context, e *env) error {
	p := shell("growing", forever)
	p.Spec.RestartPolicy = core.RestartPolicyAlways
	first(p).ResizePolicy = []core.ContainerResizePolicy{
		{ResourceName: core.ResourceMemory, RestartPolicy: core.RestartContainer},
		{ResourceName: core.ResourceCPU, RestartPolicy: core.NotRequired},
	}
	pod, err := e.resized(ctx, p, small, large)
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 1)
}

// sized waits until the cgroup of a pod of the node has limits.
func (e *env) sized(ctx context.Context, pod *core.Pod, want limits) error {
	path, err := e.podCgroup(string(pod.UID))
	if err != nil {
		return err
	}
	return eventually(ctx, 200*time.Millisecond, func(context.Context) error {
		got, err := e.limitsOf(path)
		if err != nil {
			return err
		}
		return got.expect(want)
	})
}

func resizePod(ctx context.Context, e *env) error {
	p := shell("shared", forever)
	p.Spec.NodeName = e.node().Name
	p.Spec.Resources = &core.ResourceRequirements{Requests: small.list, Limits: small.list}
	pod, err := e.start(ctx, p)
	if err != nil {
		return err
	}
	if err := e.sized(ctx, pod, small.want); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"resources": core.ResourceRequirements{Requests: large.list, Limits: large.list},
	}})
	if err != nil {
		return err
	}
	if _, err := e.client.CoreV1().Pods(e.ns).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "resize"); err != nil {
		return err
	}
	if err := e.sized(ctx, pod, large.want); err != nil {
		return err
	}
	pod, err = e.client.CoreV1().Pods(e.ns).Get(ctx, p.Name, getOptions)
	if err != nil {
		return err
	}
	return equal("restarts", status(pod, mainName).RestartCount, 0)
}
