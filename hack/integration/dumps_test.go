// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

// dumps is a node whose OCI runtime only pretends to dump and restore, since CRIU needs
// more of a kernel than the rest, with a pod of two containers.
type dumps struct {
	*node
	runtime *runtimetest.Recording
	dir     string
	cfg     *cri.PodSandboxConfig
	configs []*cri.ContainerConfig
	pod     string
	ctrs    []string
}

// withCRIU puts a criu into PATH whose check ends so.
func withCRIU(t *testing.T, l *harness.Lab, code int) {
	t.Helper()
	dir, err := os.MkdirTemp(l.Dir, "criu")
	must(t, err)
	script := fmt.Sprintf("#!/bin/sh\necho 'Error (criu/fake.c:1): this is no kernel for it'\nexit %d\n", code)
	must(t, os.WriteFile(filepath.Join(dir, "criu"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// ofShim makes a handler of containerd's own shim of the recording runtime.
func ofShim(l *harness.Lab, r *runtimetest.Recording) string {
	return fmt.Sprintf("[runtime.handlers.recording]\ntype = %q\noptions = {BinaryName = %q, Root = \"/run/stock\"}\n",
		l.Bin("containerd-shim-runc-v2"), r.Path)
}

// ownShim makes one of ours.
func ownShim(_ *harness.Lab, r *runtimetest.Recording) string {
	return fmt.Sprintf("[runtime.handlers.recording]\nbinary = %q\n", r.Path)
}

func newDumps(t *testing.T, handler func(*harness.Lab, *runtimetest.Recording) string) *dumps {
	t.Helper()
	l := lab(t)
	withCRIU(t, l, 0)
	dir, err := os.MkdirTemp(l.Dir, "dumps")
	must(t, err)
	rec, err := runtimetest.NewRecording(dir, l.Bin("runc"))
	must(t, err)
	extra := handler(l, rec)
	d := &dumps{node: newNode(t, options{Options: harness.Options{Extra: extra}}), runtime: rec, dir: dir}
	// The first pod makes what the runtime keeps.
	warm, err := d.tryRun(t.Context(), d.node.pod("warm"), "recording")
	must(t, err)
	d.remove(warm)
	d.before = d.count()
	d.cfg = d.node.pod("dumped")
	d.pod, err = d.tryRun(t.Context(), d.cfg, "recording")
	must(t, err)
	for _, name := range []string{"one", "two"} {
		c := d.ctr(name, "sh", "-c", "echo begun; echo $(($(cat /count 2>/dev/null) + 1)) > /count; sleep 1000")
		d.configs = append(d.configs, c)
		d.ctrs = append(d.ctrs, d.started(d.pod, d.cfg, c))
	}
	for _, c := range d.ctrs {
		waitFor(t, "the container to have written", func() bool { return d.exec(c, "sh", "-c", "cat /count || true") == "1\n" })
	}
	return d
}

func (d *dumps) out() string {
	d.t.Helper()
	dir, err := os.MkdirTemp(d.dir, "out")
	must(d.t, err)
	return dir
}

func (d *dumps) order(verb, id, order string) {
	d.t.Helper()
	must(d.t, d.runtime.Order(verb, id, order))
}

// calls gives those of some verbs since the last time.
func (d *dumps) calls() []string {
	d.t.Helper()
	calls, err := d.runtime.Calls()
	must(d.t, err)
	return calls
}

func (d *dumps) checkpointPod(timeout time.Duration, out string, ctrs ...string) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), timeout)
	defer cancel()
	_, err := d.client.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: d.pod, OutputPath: out, ContainerIds: ctrs})
	return err
}

func (d *dumps) checkpoint(location string, timeout int64) error {
	_, err := d.client.CheckpointContainer(d.t.Context(), &cri.CheckpointContainerRequest{
		ContainerId: d.ctrs[0], Location: location, Timeout: timeout,
	})
	return err
}

func (d *dumps) restore(change func(*cri.RestorePodRequest), path string) (*cri.RestorePodResponse, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	cfg := d.node.pod("restored")
	cfg.Hostname = "dumped"
	r := &cri.RestorePodRequest{CheckpointPath: path, Config: cfg, RuntimeHandler: "recording", ContainerConfigs: slices.Clone(d.configs)}
	if change != nil {
		change(r)
	}
	return d.client.RestorePod(ctx, r)
}

// untouched checks that all containers run on, and that nothing is where a checkpoint would be.
func (d *dumps) untouched(dir string) {
	d.t.Helper()
	for _, c := range d.ctrs {
		if s := d.status(c).GetState(); s != cri.ContainerState_CONTAINER_RUNNING {
			d.t.Errorf("container %s is %s", c, s)
			continue
		}
		if got := d.exec(c, "cat", "/count"); got != "1\n" { // a frozen one would not answer
			d.t.Errorf("it counts %q", got)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		d.t.Errorf("left: %v, %v", left, err)
	}
}

// same is also that the node has what it had before.
func (d *dumps) gone() {
	d.t.Helper()
	d.remove(d.pod)
	d.same()
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %s (%v), want %s", what, got, err, want)
	}
}
