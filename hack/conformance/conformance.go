// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs critest, the CRI validation suite of kubernetes-sigs/cri-tools,
// against a daemon in a laboratory and compares the outcome with what is expected.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"text/tabwriter"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// askedDigest is the digest at which critest asks for one of its images. That image cannot be
// made anew, so a copy of critest asks for ours.
const askedDigest = "9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"

// Outcomes of a spec.
const (
	Passed  = "pass"
	Failed  = "fail"
	Skipped = "skip"
)

// Spec is one spec of critest and how it went.
type Spec struct {
	// Group is what critest calls the specs of one area.
	Group   string
	Name    string
	Outcome string
	// Why is the reason of a failure or a skip, one line.
	Why string
}

// Options say which specs are run, and how.
type Options struct {
	// Focus is a regular expression of specs; empty is all.
	Focus string
	// Parallel is how many run at once.
	Parallel int
	// NRISocket lets the NRI specs run.
	NRISocket string
	// Flags are further ones of critest.
	Flags []string
	// Log is the file that gets critest's own output.
	Log string
}

// Run runs critest against a daemon.
func Run(ctx context.Context, l *harness.Lab, d *harness.Daemon, digest v1.Hash, o Options) ([]Spec, error) {
	program, err := patched(l, digest)
	if err != nil {
		return nil, err
	}
	report := filepath.Join(l.Dir, "report.json")
	args := []string{"-runtime-endpoint=unix://" + d.Socket, "-config=/nonexistent"}
	if o.NRISocket != "" {
		args = append(args, "-nri-socket="+o.NRISocket)
	}
	args = append(args, o.Flags...)
	ginkgo := []string{
		"--nodes", fmt.Sprint(max(1, o.Parallel)), "--randomize-all", "--no-color", "-v", "--timeout", "20m",
		"--skip", "benchmark", "--focus", o.Focus, "--json-report", filepath.Base(report), "--output-dir", l.Dir, program, "--",
	}
	log, err := os.Create(o.Log)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, l.Bin("ginkgo"), append(ginkgo, args...)...)
	cmd.Dir = l.Dir
	cmd.Stdout, cmd.Stderr = log, log
	ran := cmd.Run()
	if err := log.Close(); err != nil {
		return nil, err
	}
	specs, err := ReadReport(report)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("could not read critest's report (see %s): %w", o.Log, err), ran)
	}
	return specs, nil
}

// patched copies critest with the digest of our image in place of the one it asks for.
func patched(l *harness.Lab, digest v1.Hash) (string, error) {
	raw, err := os.ReadFile(l.Bin("critest"))
	if err != nil {
		return "", fmt.Errorf("could not read critest: %w", err)
	}
	if !bytes.Contains(raw, []byte(askedDigest)) {
		return "", errors.New("critest does not ask for the known digest: another version?")
	}
	to := filepath.Join(l.Dir, "critest.test")
	raw = bytes.ReplaceAll(raw, []byte(askedDigest), []byte(digest.Hex))
	if err := os.WriteFile(to, raw, 0o755); err != nil {
		return "", err
	}
	return to, nil
}

// suites are the part of ginkgo's JSON report that is used.
type suites []struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		Failure                 struct{ Message string }
	}
}

// ReadReport reads the specs that ran from ginkgo's JSON report, or why they did not.
func ReadReport(path string) ([]Spec, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all suites
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	var out []Spec
	for _, suite := range all {
		for _, r := range suite.SpecReports {
			if r.LeafNodeType != "It" && r.State == "passed" {
				continue // set-up of the suite
			}
			text := append(r.ContainerHierarchyTexts, r.LeafNodeText)
			s := Spec{Group: short(text[0]), Name: short(strings.Join(text, " ")), Outcome: Failed, Why: oneLine(r.Failure.Message)}
			switch r.State {
			case "passed":
				s.Outcome = Passed
			case "skipped":
				s.Outcome = Skipped
			}
			if s.Outcome != Skipped || s.Why != "" { // else: left out by the focus
				out = append(out, s)
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// short takes away the mark that all names begin with.
func short(name string) string { return strings.TrimPrefix(name, "[k8s.io] ") }

// oneLine keeps what a failure's message begins with, and what the runtime said.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const head, most = 120, 700
	if i := strings.Index(s, "desc = "); i > head {
		s = s[:head] + " … " + s[i:]
	}
	if len(s) > most {
		s = s[:most] + " …"
	}
	return s
}

// Table prints the specs in groups, with the reasons of those that did not pass.
func Table(specs []Spec) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	count := map[string]map[string]int{}
	var groups []string
	for _, s := range specs {
		if count[s.Group] == nil {
			groups = append(groups, s.Group)
		}
		count[s.Group] = sum(count[s.Group], s.Outcome)
		count[""] = sum(count[""], s.Outcome)
	}
	fmt.Fprintln(w, "group\tpass\tfail\tskip")
	for _, g := range append(groups, "") {
		name := g
		if g == "" {
			name = "all"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", name, count[g][Passed], count[g][Failed], count[g][Skipped])
	}
	_ = w.Flush() // writes to memory
	for _, s := range specs {
		if s.Outcome != Passed {
			fmt.Fprintf(&b, "%s: %s\n      %s\n", s.Outcome, s.Name, s.Why)
		}
	}
	return b.String()
}

func sum(m map[string]int, key string) map[string]int {
	if m == nil {
		m = map[string]int{}
	}
	m[key]++
	return m
}
