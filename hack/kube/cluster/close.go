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
	"syscall"
	"time"

	"github.com/sandflow-cri/sandflow/hack/world"
)

// closing bounds all of Close.
const closing = 5 * time.Minute

// Close takes the cluster down: its pods in order, then the nodes, then the control plane. The
// error says what was left where nothing should be. It does all that even if the context has
// ended.
func (c *Cluster) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	var errs []error
	if c.ready {
		errs = append(errs, c.empty(ctx), c.each(func(n *Node) error { return n.retire(ctx) }))
	}
	errs = append(errs, c.each(func(n *Node) error { return n.switchOff() }))
	if c.control != nil {
		errs = append(errs, c.control.stop())
	}
	if c.registry != nil {
		errs = append(errs, c.registry.Close())
	}
	if c.bridge {
		errs = append(errs, closeBridge())
	}
	errs = append(errs, c.sysctls.restore())
	if diff, err := world.Settle(ctx, c.where(), c.before, leftPatience); err != nil || diff != "" {
		errs = append(errs, err, fmt.Errorf("this is not as before the cluster:\n%s", diff))
	}
	return errors.Join(errs...)
}

// where counts the laboratory, outside of the nodes.
func (c *Cluster) where() world.Where {
	return world.Where{CgroupParent: c.lab.CgroupParent, Processes: true}
}

// empty removes everything that has pods, and services, which kube-proxy has rules for.
func (c *Cluster) empty(ctx context.Context) error {
	for _, n := range c.Nodes {
		files, err := filepath.Glob(filepath.Join(n.Root(manifestDir), "*"))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	if c.control == nil {
		return nil
	}
	return c.run(ctx, "delete", "--all-namespaces", "--all", "--grace-period=1", "--timeout=90s",
		"deployments,statefulsets,daemonsets,cronjobs,jobs,replicationcontrollers,replicasets,services,pods")
}

// retire checks that the node has nothing left of any pod, and ends its programs in order.
func (n *Node) retire(ctx context.Context) error {
	left, err := n.Left(ctx)
	errs := []error{err}
	if len(left) > 0 {
		errs = append(errs, fmt.Errorf("there is something left:\n  %s", strings.Join(left, "\n  ")))
	}
	for _, p := range []*process{n.kubelet, n.proxy} {
		if p != nil {
			errs = append(errs, p.stop(syscall.SIGTERM))
		}
	}
	errs = append(errs, n.runtime.stop(syscall.SIGTERM))
	if n.kind == Attached {
		errs = append(errs, n.upstream.stop(syscall.SIGTERM))
	}
	return errors.Join(errs...)
}
