// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// each does something with every node at once.
func (c *Cluster) each(do func(n *Node) error) error {
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		wg.Go(func() {
			if err := do(n); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n.Name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// startNodes boots the nodes and waits until pods can be made on them.
func (c *Cluster) startNodes(ctx context.Context) error {
	err := c.each(func(n *Node) error {
		if err := n.plan(); err != nil {
			return err
		}
		if err := n.prepare(); err != nil {
			return err
		}
		if err := n.switchOn(ctx); err != nil {
			return err
		}
		if err := n.startRuntime(ctx); err != nil {
			return err
		}
		if err := n.warmUp(ctx); err != nil {
			return fmt.Errorf("could not run a first pod: %w", err)
		}
		return n.startKubelet(ctx)
	})
	if err != nil {
		return err
	}
	if c.control != nil {
		if err := c.furnish(ctx); err != nil {
			return err
		}
	}
	return c.each(func(n *Node) error {
		n.before, err = n.count(ctx)
		return err
	})
}

// furnish waits until the nodes are ready, and makes what every cluster has.
func (c *Cluster) furnish(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := c.WaitReady(ctx, n); err != nil {
			return err
		}
	}
	handlers := []string{"runc"}
	if c.Nodes[0].crun != "" {
		handlers = append(handlers, "crun")
	}
	for _, name := range handlers {
		class := object{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": object{"name": name}, "handler": name}
		if err := c.apply(ctx, class); err != nil {
			return err
		}
	}
	// Without it pods are refused.
	return c.poll(ctx, func(ctx context.Context) error { return c.run(ctx, "get", "serviceaccount", "default") })
}

// WaitReady waits until the cluster says that a node is ready, by a report of this boot of it.
func (c *Cluster) WaitReady(ctx context.Context, n *Node) error {
	return c.poll(ctx, func(ctx context.Context) error {
		const status = `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`
		out, err := c.Kubectl(ctx, "get", "node", n.Name, "-o", status).CombinedOutput()
		if text := strings.TrimSpace(string(out)); err != nil || !strings.HasPrefix(text, "True") {
			return errors.Join(fmt.Errorf("%s is not ready: %s", n.Name, text), err)
		}
		return nil
	})
}

// poll tries until success, for as long as patience lasts.
func (c *Cluster) poll(ctx context.Context, try func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// apply gives an object to the API.
func (c *Cluster) apply(ctx context.Context, o object) error {
	path := filepath.Join(c.Dir, "object.json")
	if err := writeObject(path, o); err != nil {
		return err
	}
	return errors.Join(c.run(ctx, "apply", "-f", path), os.Remove(path))
}
