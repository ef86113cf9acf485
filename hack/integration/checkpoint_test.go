// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestCheckpointUnavailable(t *testing.T) {
	withCRIU(t, lab(t), 1)
	n := newNode(t, options{})
	cfg := n.pod("p")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sleep", "1000"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := filepath.Join(n.lab.Dir, "out")
	must(t, os.Mkdir(out, 0o700))
	_, one := n.client.CheckpointContainer(ctx, &cri.CheckpointContainerRequest{ContainerId: ctr, Location: out + "/c.tar"})
	_, all := n.client.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: pod, ContainerIds: []string{ctr}, OutputPath: out})
	_, back := n.client.RestorePod(ctx, &cri.RestorePodRequest{Config: n.pod("q"), CheckpointPath: out, ContainerConfigs: []*cri.ContainerConfig{n.ctr("c")}})
	for what, err := range map[string]error{"CheckpointContainer": one, "CheckpointPod": all, "RestorePod": back} {
		wantCode(t, what, err, codes.Unimplemented)
		if err == nil || !strings.Contains(err.Error(), "criu") || !strings.Contains(err.Error(), "no kernel for it") {
			t.Errorf("%s does not say why: %v", what, err)
		}
	}
	r, err := n.client.Status(ctx, &cri.StatusRequest{Verbose: true})
	must(t, err)
	if w := r.GetInfo()["warnings"]; !strings.Contains(w, "criu") {
		t.Errorf("the warnings do not tell: %s", w)
	}
	n.remove(pod)
	n.same()
}

func TestCheckpointContainer(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	location := filepath.Join(out, "c.tar")
	must(t, d.checkpoint(location, 0))
	want := []string{"pause " + d.ctrs[0] + " running", "checkpoint " + d.ctrs[0] + " paused", "resume " + d.ctrs[0] + " paused"}
	if got := d.calls(); !slices.Equal(got, want) {
		t.Errorf("the runtime was asked %q, want %q", got, want)
	}
	entries := archived(t, location)
	for _, name := range []string{"config.dump", "spec.dump", "status", "checkpoint/pages-1.img", "dump.log", "stats-dump", "deleted.files", "rootfs-diff.tar"} {
		if !slices.Contains(entries, name) {
			t.Errorf("the archive lacks %s: %q", name, entries)
		}
	}
	must(t, d.checkpoint(location, 60)) // once more, over it
	must(t, os.Remove(location))
	d.untouched(out)

	d.order("checkpoint", "", "fail")
	if err := d.checkpoint(location, 0); err == nil || !strings.Contains(err.Error(), "made to fail") {
		t.Errorf("a dump that fails: %v", err)
	}
	d.untouched(out)
	d.order("checkpoint", "", "hang")
	wantCode(t, "past its timeout", d.checkpoint(location, 1), codes.DeadlineExceeded)
	d.untouched(out)
	d.order("checkpoint", "", "")
	d.order("pause", "", "fail")
	if err := d.checkpoint(location, 0); err == nil {
		t.Error("checkpointed what cannot be frozen")
	}
	d.untouched(out)
	d.order("pause", "", "")

	for what, place := range map[string]string{"relative": "c.tar", "a directory": out, "not clean": out + "/../c.tar", "none": ""} {
		wantCode(t, what, d.checkpoint(place, 0), codes.InvalidArgument)
	}
	wantCode(t, "negative timeout", d.checkpoint(location, -1), codes.InvalidArgument)
	if err := d.checkpoint(filepath.Join(out, "none", "c.tar"), 0); err == nil {
		t.Error("checkpointed into no directory")
	}
	d.untouched(out)
	d.gone()
}

func archived(t *testing.T, path string) (names []string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		names = append(names, h.Name)
	}
}

// TestRemovedInCheckpoint removes a pod while its containers are frozen and dumped.
func TestRemovedInCheckpoint(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	d.order("checkpoint", "", "hang")
	done := make(chan error, 1)
	go func() { done <- d.checkpointPod(patience, out, d.ctrs...) }()
	d.hangs(0, "checkpoint "+d.ctrs[1])
	d.remove(d.pod)
	if err := <-done; err == nil {
		t.Error("the checkpoint succeeded")
	}
	if left, err := os.ReadDir(out); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	d.same()
}

func TestCheckpointPodIsOneCut(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	must(t, d.checkpointPod(patience, out, d.ctrs...))
	var verbs []string
	for _, c := range d.calls() {
		f := strings.Fields(c)
		verbs = append(verbs, f[0]+" "+f[2])
	}
	want := []string{"pause running", "pause running", "checkpoint paused", "checkpoint paused", "resume paused", "resume paused"}
	if !slices.Equal(verbs, want) {
		t.Errorf("the runtime was asked %q, want %q", verbs, want)
	}
	must(t, os.RemoveAll(out))
	must(t, os.Mkdir(out, 0o700))
	d.untouched(out)
	d.gone()
}

// TestCheckpointPodFails has each failure: the directory is empty again, all containers run.
func TestCheckpointPodFails(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	for _, verb := range []string{"pause", "checkpoint"} {
		d.order(verb, d.ctrs[1], "fail")
		if err := d.checkpointPod(patience, out, d.ctrs...); err == nil || !strings.Contains(err.Error(), "made to fail") {
			t.Errorf("%s fails: %v", verb, err)
		}
		d.untouched(out)
		d.order(verb, d.ctrs[1], "")
	}
	d.order("checkpoint", d.ctrs[1], "hang")
	wantCode(t, "past its deadline", d.checkpointPod(time.Second, out, d.ctrs...), codes.DeadlineExceeded)
	waitFor(t, "the directory to be empty", func() bool { left, err := os.ReadDir(out); return err == nil && len(left) == 0 })
	d.untouched(out)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	seen := len(d.calls())
	done := make(chan error, 1)
	go func() {
		_, err := d.client.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: d.pod, OutputPath: out, ContainerIds: d.ctrs})
		done <- err
	}()
	d.hangs(seen, "checkpoint "+d.ctrs[1])
	wantCode(t, "a second one meanwhile", d.checkpointPod(patience, d.out(), d.ctrs...), codes.FailedPrecondition)
	cancel() // the caller goes
	wantCode(t, "cancelled", <-done, codes.Canceled)
	waitFor(t, "the directory to be empty", func() bool { left, err := os.ReadDir(out); return err == nil && len(left) == 0 })
	d.untouched(out)
	d.order("checkpoint", d.ctrs[1], "")
	d.thawedLater(out)
	waitFor(t, "the next one to be let", func() bool { return d.checkpointPod(patience, out, d.ctrs...) == nil })
	d.gone()
}

// thawedLater has a container that cannot be thawed at first.
func (d *dumps) thawedLater(out string) {
	d.t.Helper()
	d.order("resume", d.ctrs[0], "fail")
	var err error
	waitFor(d.t, "the next one to be let", func() bool {
		err = d.checkpointPod(patience, out, d.ctrs...)
		return status.Code(err) != codes.FailedPrecondition
	})
	if err == nil || !strings.Contains(err.Error(), "still frozen") {
		d.t.Errorf("what cannot be thawed: %v", err)
	}
	seen := len(d.calls())
	d.order("resume", d.ctrs[0], "")
	d.hangs(seen, "resume "+d.ctrs[0]) // by itself
	d.untouched(out)
}

// hangs waits for a call that the runtime was asked after the first ones.
func (d *dumps) hangs(after int, call string) {
	d.t.Helper()
	waitFor(d.t, call, func() bool {
		return slices.ContainsFunc(d.calls()[after:], func(c string) bool { return strings.HasPrefix(c, call) })
	})
}

func TestCheckpointPodRefuses(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	other := d.node.pod("other")
	otherID := d.run(other)
	stranger := d.started(otherID, other, d.ctr("c", "sleep", "1000"))
	created := d.created(d.pod, d.cfg, d.ctr("created", "true"))
	full := d.out()
	must(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	link := filepath.Join(d.dir, "link")
	must(t, os.Symlink(out, link))
	ok := func() *cri.CheckpointPodRequest {
		return &cri.CheckpointPodRequest{PodSandboxId: d.pod, OutputPath: out, ContainerIds: d.ctrs}
	}
	for what, c := range map[string]struct {
		change func(*cri.CheckpointPodRequest)
		want   codes.Code
	}{
		"unknown pod":           {func(r *cri.CheckpointPodRequest) { r.PodSandboxId = "nothing" }, codes.NotFound},
		"no containers":         {func(r *cri.CheckpointPodRequest) { r.ContainerIds = nil }, codes.InvalidArgument},
		"a container twice":     {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{d.ctrs[0], d.ctrs[0]} }, codes.InvalidArgument},
		"unknown container":     {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{"nothing"} }, codes.NotFound},
		"of another pod":        {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{stranger} }, codes.InvalidArgument},
		"not running":           {func(r *cri.CheckpointPodRequest) { r.ContainerIds = []string{created} }, codes.FailedPrecondition},
		"an option":             {func(r *cri.CheckpointPodRequest) { r.Options = map[string]string{"a": "b"} }, codes.InvalidArgument},
		"no directory":          {func(r *cri.CheckpointPodRequest) { r.OutputPath = out + "/none" }, codes.InvalidArgument},
		"a relative directory":  {func(r *cri.CheckpointPodRequest) { r.OutputPath = "out" }, codes.InvalidArgument},
		"a full directory":      {func(r *cri.CheckpointPodRequest) { r.OutputPath = full }, codes.InvalidArgument},
		"a link to a directory": {func(r *cri.CheckpointPodRequest) { r.OutputPath = link }, codes.InvalidArgument},
	} {
		r := ok()
		c.change(r)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := d.client.CheckpointPod(ctx, r)
		cancel()
		wantCode(t, what, err, c.want)
	}
	_, err := d.client.CheckpointPod(t.Context(), ok())
	wantCode(t, "no deadline", err, codes.InvalidArgument)
	d.untouched(out)
	d.remove(otherID)
	d.gone()
}

// TestKilledInCheckpoint kills the daemon while containers are frozen: the next one thaws
// them and removes what is half-made.
func TestKilledInCheckpoint(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	for what, call := range map[string]func(){
		"pod":       func() { _ = d.checkpointPod(patience, out, d.ctrs...) },
		"container": func() { _ = d.checkpoint(filepath.Join(out, "c.tar"), 0) },
	} {
		d.order("checkpoint", d.ctrs[0], "hang")
		done, seen := make(chan struct{}), len(d.calls())
		go func() {
			defer close(done)
			call()
		}()
		d.hangs(seen, "checkpoint "+d.ctrs[0])
		must(t, d.daemon.Kill())
		<-done
		d.order("checkpoint", d.ctrs[0], "")
		must(t, d.daemon.Start(t.Context()))
		waitFor(t, what+": nothing to be left", func() bool { left, err := os.ReadDir(out); return err == nil && len(left) == 0 })
		d.untouched(out)
	}
	waitFor(t, "the next one to be let", func() bool { return d.checkpointPod(patience, out, d.ctrs...) == nil })
	d.gone()
}
