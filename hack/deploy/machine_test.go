// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests how sandflow is put on machines: its package, its units and the
// steps of the guides, in a machine with systemd that is booted in a laboratory.
package deploy

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/images"
	"github.com/sandflow-cri/sandflow/hack/machine"
)

// patience is how long anything may take that should be quick.
const patience = 20 * time.Second

// node is a machine with what a test needs around it.
type node struct {
	*machine.Machine

	t   *testing.T
	lab *harness.Lab
}

// newNode boots a machine that has what sandflow's package does not bring: runc, CNI
// plugins, and the tools to look at pods and images.
func newNode(t *testing.T) *node {
	t.Helper()
	l, ok := harness.Here()
	if !ok {
		t.Skip("not in a laboratory: run \"make package-check\"")
	}
	t.Parallel() // machines share nothing
	m, err := machine.New(l)
	must(t, err)
	n := &node{Machine: m, t: t, lab: l}
	t.Cleanup(n.end)
	must(t, m.Boot(t.Context()))
	for _, program := range []string{"runc", "crictl", "ctr"} {
		n.put(l.Bin(program), "/usr/local/bin/"+program)
	}
	return n
}

func (n *node) end() {
	if n.t.Failed() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		log, _ := n.Run(ctx, "journalctl", "--no-pager", "-n", "60", "-o", "short-precise")
		n.t.Logf("the machine's journal ends with:\n%s", log)
	}
	if err := n.PowerOff(); err != nil {
		n.t.Error(err)
	}
}

// put copies a file, or the files of a directory, into the machine.
func (n *node) put(from, to string) {
	n.t.Helper()
	must(n.t, os.MkdirAll(n.Path(filepath.Dir(to)), 0o755)) //nolint:gosec // as usual there
	out, err := exec.CommandContext(n.t.Context(), "cp", "-rL", from, n.Path(to)).CombinedOutput()
	if err != nil {
		n.t.Fatalf("could not copy %s: %v: %s", from, err, out)
	}
}

// write writes a file of the machine.
func (n *node) write(path, text string) {
	n.t.Helper()
	must(n.t, os.MkdirAll(n.Path(filepath.Dir(path)), 0o755))  //nolint:gosec // as usual there
	must(n.t, os.WriteFile(n.Path(path), []byte(text), 0o644)) //nolint:gosec // as usual there
}

// run runs a command in the machine, which must succeed, and returns what it prints.
func (n *node) run(name string, args ...string) string {
	n.t.Helper()
	if name == "crictl" { // its own two seconds are too few for a busy machine
		args = append([]string{"--timeout", "60s"}, args...)
	}
	out, err := n.Run(n.t.Context(), name, args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// show is a property of a unit.
func (n *node) show(unit, property string) string {
	n.t.Helper()
	return n.run("systemctl", "show", "--value", "--property", property, unit)
}

// importImage brings an image into the node, and returns its name.
func (n *node) importImage() string {
	n.t.Helper()
	n.put(images.DemoArchive(n.lab.Images()), "/tmp/demo.tar")
	n.run("ctr", "-a", "/run/sandflow/containerd.sock", "-n", "k8s.io", "images", "import", "/tmp/demo.tar")
	return "sandflow.example/demo:1"
}

// pod is a pod with one container that runs.
type pod struct{ id, container string }

// runPod runs a pod with crictl. Extra is put into its configuration.
func (n *node) runPod(name, image, extra string) pod {
	n.t.Helper()
	n.write("/root/"+name+".json", `{"metadata": {"name": "`+name+`", "namespace": "default", "uid": "`+name+`-1"},
 "log_directory": "/var/log/pods/`+name+`", `+extra+` "linux": {}}`)
	n.write("/root/"+name+"-c.json", `{"metadata": {"name": "c"}, "image": {"image": "`+image+`"}, "log_path": "c.log",
 "labels": {"io.kubernetes.pod.name": "`+name+`", "io.kubernetes.pod.namespace": "default"},
 "command": ["sh", "-c", "while :; do echo tick; sleep 0.2; done"], "linux": {}}`)
	id := n.run("crictl", "runp", "/root/"+name+".json")
	c := n.run("crictl", "create", id, "/root/"+name+"-c.json", "/root/"+name+".json")
	n.run("crictl", "start", c)
	return pod{id, c}
}

// process tells which process a container is: its ID and when it was started.
func (n *node) process(container string) string {
	n.t.Helper()
	return n.run("crictl", "inspect", "--output", "go-template",
		"--template", "{{.info.pid}} {{.status.state}} {{.status.startedAt}}", container)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wait waits until the condition holds.
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}
