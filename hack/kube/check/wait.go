// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// errDeleted: what was watched has been deleted.
var errDeleted = errors.New("deleted")

// watch lists and watches one object of the core API in the namespace of the check.
func (e *env) watch(resource, name string) cache.ListerWatcher {
	return e.watchIn(e.client.CoreV1().RESTClient(), resource, name)
}

// watchIn lists and watches one object of any API.
func (e *env) watchIn(client rest.Interface, resource, name string) cache.ListerWatcher {
	return cache.NewListWatchFromClient(client, resource, e.ns, fields.OneTermEqualSelector("metadata.name", name))
}

// until watches an object until done says so, and returns it as it was then; or as it was
// last, with an error.
func until[T runtime.Object](ctx context.Context, from cache.ListerWatcher, kind T, done func(T) (bool, error)) (T, error) {
	var last T
	_, err := watchtools.UntilWithSync(ctx, from, kind, nil, func(ev watch.Event) (bool, error) {
		now, ok := ev.Object.(T)
		if !ok {
			return false, fmt.Errorf("watched a %T, got a %T", kind, ev.Object)
		}
		last = now
		if ev.Type == watch.Deleted {
			return false, errDeleted
		}
		return done(now)
	})
	return last, err
}

// podUntil watches a pod.
func (e *env) podUntil(ctx context.Context, name, what string, done func(*core.Pod) (bool, error)) (*core.Pod, error) {
	pod, err := until(ctx, e.watch("pods", name), &core.Pod{}, done)
	if err != nil {
		return pod, fmt.Errorf("pod %s did not become %s: %w\n%s", name, what, err, state(pod))
	}
	return pod, nil
}

// ready waits until a pod is ready.
func (e *env) ready(ctx context.Context, name string) (*core.Pod, error) {
	return e.podUntil(ctx, name, "ready", func(p *core.Pod) (bool, error) {
		if p.Status.Phase == core.PodFailed || p.Status.Phase == core.PodSucceeded {
			return false, errors.New("it has ended")
		}
		return isReady(p), nil
	})
}

// ended waits until a pod has succeeded or failed.
func (e *env) ended(ctx context.Context, name string) (*core.Pod, error) {
	return e.podUntil(ctx, name, "ended", func(p *core.Pod) (bool, error) {
		return p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed, nil
	})
}

// gonePod waits until a pod is deleted and returns its last state.
func (e *env) gonePod(ctx context.Context, name string) (*core.Pod, error) {
	pod, err := until(ctx, e.watch("pods", name), &core.Pod{}, func(*core.Pod) (bool, error) { return false, nil })
	if errors.Is(err, errDeleted) {
		return pod, nil
	}
	return pod, fmt.Errorf("pod %s did not go: %w\n%s", name, err, state(pod))
}

// event waits for an event about a pod whose message contains a text.
func (e *env) event(ctx context.Context, pod, reason, text string) error {
	from := cache.NewFilteredListWatchFromClient(e.client.CoreV1().RESTClient(), "events", e.ns, func(o *meta.ListOptions) {
		o.FieldSelector = "involvedObject.name=" + pod + ",reason=" + reason
	})
	last, err := until(ctx, from, &core.Event{}, func(ev *core.Event) (bool, error) {
		return strings.Contains(ev.Message, text), nil
	})
	if err != nil {
		message := "there was none"
		if last != nil {
			message = last.Message
		}
		return fmt.Errorf("no event %s of pod %s with %q: %w; the last one: %s", reason, pod, text, err, message)
	}
	return nil
}

func isReady(p *core.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == core.PodReady {
			return c.Status == core.ConditionTrue
		}
	}
	return false
}

// state is a pod's status in a few lines.
func state(p *core.Pod) string {
	if p == nil {
		return "no pod was seen"
	}
	lines := []string{fmt.Sprintf("%s is %s %s %s", p.Name, p.Status.Phase, p.Status.Reason, p.Status.Message)}
	for _, all := range [][]core.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range all {
			c := &all[i]
			line := fmt.Sprintf("%s (restarts %d, ready %v):", c.Name, c.RestartCount, c.Ready)
			switch {
			case c.State.Waiting != nil:
				line += " waiting, " + c.State.Waiting.Reason + ": " + c.State.Waiting.Message
			case c.State.Terminated != nil:
				t := c.State.Terminated
				line += fmt.Sprintf(" ended with %d, %s: %s", t.ExitCode, t.Reason, t.Message)
			case c.State.Running != nil:
				line += " running"
			}
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}
