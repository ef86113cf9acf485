// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"fmt"

	core "k8s.io/api/core/v1"
	nodeapi "k8s.io/api/node/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var handlers = []check{
	{name: "RuntimeClass: every handler that the node tells runs a pod", run: everyHandler},
	{name: "RuntimeClass: an unknown handler is named in the pod's events", run: unknownHandler},
}

// class makes a runtime class of a handler.
func (e *env) class(ctx context.Context, name, handler string) error {
	api := e.client.NodeV1().RuntimeClasses()
	_, err := api.Create(ctx, &nodeapi.RuntimeClass{ObjectMeta: meta.ObjectMeta{Name: name}, Handler: handler}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	e.later(func(ctx context.Context) error { return api.Delete(ctx, name, meta.DeleteOptions{}) })
	return nil
}

func everyHandler(ctx context.Context, e *env) error {
	node, err := e.client.CoreV1().Nodes().Get(ctx, e.node().Name, getOptions)
	if err != nil {
		return err
	}
	count := 0
	for _, h := range node.Status.RuntimeHandlers {
		if h.Name == "" {
			continue
		}
		count++
		name := "check-" + h.Name
		if err := e.class(ctx, name, h.Name); err != nil {
			return err
		}
		p := shell(name, "echo ran")
		p.Spec.NodeName, p.Spec.RuntimeClassName = e.node().Name, ptr.To(name)
		if err := e.prints(ctx, p, "ran"); err != nil {
			return fmt.Errorf("handler %s: %w", h.Name, err)
		}
	}
	if count == 0 {
		return errors.New("the node tells no handlers")
	}
	return nil
}

func unknownHandler(ctx context.Context, e *env) error {
	if err := e.class(ctx, "check-unknown", "no-such-handler"); err != nil {
		return err
	}
	p := shell("hopeless", "echo never")
	p.Spec.RuntimeClassName = ptr.To("check-unknown")
	if err := e.create(ctx, p); err != nil {
		return err
	}
	if err := e.event(ctx, p.Name, "FailedCreatePodSandBox", "no-such-handler"); err != nil {
		return err
	}
	pod, err := e.client.CoreV1().Pods(e.ns).Get(ctx, p.Name, getOptions)
	return errors.Join(err, equal("phase", pod.Status.Phase, core.PodPending))
}
