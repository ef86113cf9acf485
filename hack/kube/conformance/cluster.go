// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sandflow-cri/sandflow/hack/conformance"
	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// OnCluster runs e2e.test against a cluster of two nodes in the laboratory.
func OnCluster(ctx context.Context, l *harness.Lab, o Options) (_ []conformance.Spec, err error) {
	c, err := cluster.Start(ctx, cluster.Options{
		Nodes: 2, Runtime: o.Runtime, Plain: true, Images: []string{Images(l)}, Out: o.Out,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, keepLogs(c, filepath.Join(o.Reports, "cluster")), c.Close(ctx))
	}()
	dir := filepath.Join(l.Dir, "e2e")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s := suite{
		name: "e2e", program: l.Bin("e2e.test"), options: o, dir: dir, seen: dir,
		args: []string{
			"--kubeconfig=" + c.Kubeconfig, "--provider=skeleton", "--node-os-distro=debian",
			"--kubectl-path=" + l.Bin("kubectl"),
		},
		command: func(ctx context.Context, name string, args ...string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, l.Bin(name), args...)
			cmd.Dir = dir
			return cmd
		},
	}
	return s.run(ctx)
}

// keepLogs copies the logs of all programs of a cluster.
func keepLogs(c *cluster.Cluster, to string) error {
	logs, err := filepath.Glob(filepath.Join(c.Dir, "*.txt"))
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		more, err := filepath.Glob(filepath.Join(n.Dir, "*.txt"))
		if err != nil {
			return err
		}
		logs = append(logs, more...)
	}
	var errs []error
	for _, log := range logs {
		name, err := filepath.Rel(c.Dir, log)
		errs = append(errs, err, copyFile(log, filepath.Join(to, name)))
	}
	return errors.Join(errs...)
}

// copyFile copies a file, and makes the directory that it is copied to.
func copyFile(from, to string) error {
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, raw, 0o644)
}
