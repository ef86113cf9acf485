// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs Kubernetes' own tests of nodes, those marked [NodeConformance], and
// compares the outcome with what is expected. There are two programs of them. e2e.test runs
// against a cluster of two nodes. e2e_node.test runs on a node itself, where it brings up
// kubelet and a small control plane: a machine with systemd, since it stops and starts services;
// of its specs those are run that e2e.test does not have.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/sandflow-cri/sandflow/hack/conformance"
	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/kube/cluster"
)

// focus is the mark of the specs, skipFiles the folder whose specs are in both programs.
const (
	focus     = `\[NodeConformance\]`
	skipFiles = "test/e2e/common/"
)

// suiteTime bounds a run of one of the programs.
const suiteTime = "3h"

// Options say what is run, and on what.
type Options struct {
	// Runtime is what the nodes run pods with: cluster.Embedded, or cluster.Upstream.
	Runtime cluster.Runtime
	// Focus is a regular expression of specs; empty is all.
	Focus string
	// Parallel is how many run at once. Most of their time they wait.
	Parallel int
	// Reports is the directory that gets the programs' output and the daemons' logs.
	Reports string
	// Out gets a line about each thing that happens.
	Out io.Writer
}

// Images is the directory of the images that the tests ask for, made by "lab kubernetes-images".
func Images(l *harness.Lab) string { return filepath.Join(l.Build, "images-kubernetes") }

// suite is a run of one of the programs.
type suite struct {
	name    string
	program string
	options Options
	// flags are further ones of ginkgo, args those of the program.
	flags, args []string
	// dir is where ginkgo runs, as the command sees it, and seen is the same place for us.
	dir, seen string
	command   func(ctx context.Context, name string, args ...string) *exec.Cmd
}

// run runs it and reads its report. That specs fail is no error.
func (s suite) run(ctx context.Context) (_ []conformance.Spec, err error) {
	log := filepath.Join(s.options.Reports, s.name+".log")
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	const report = "report.json"
	args := []string{
		"--procs", strconv.Itoa(max(1, s.options.Parallel)), "--no-color", "-v", "--timeout", suiteTime,
		"--focus", s.focus(), "--json-report", report, "--output-dir", s.dir,
	}
	args = append(append(args, s.flags...), s.program, "--")
	cmd := s.command(ctx, "ginkgo", append(args, s.args...)...)
	cmd.Stdout, cmd.Stderr = f, f
	ran := cmd.Run()
	specs, err := conformance.ReadReport(filepath.Join(s.seen, report))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("could not read the report of %s (see %s): %w", s.name, log, err), ran)
	}
	return specs, nil
}

// focus is an expression for specs that have the mark, and what the options say before it.
func (s suite) focus() string {
	if s.options.Focus == "" {
		return focus
	}
	return "(" + s.options.Focus + ").*" + focus
}
