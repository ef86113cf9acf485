// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/steps/runtime/runtimetest"
)

func TestRestorePod(t *testing.T) {
	for name, shim := range map[string]func(*harness.Lab, *runtimetest.Recording) string{"own shim": ownShim, "containerd's shim": ofShim} {
		t.Run(name, func(t *testing.T) { restoreInto(t, newDumps(t, shim)) })
	}
}

func restoreInto(t *testing.T, d *dumps) {
	t.Helper()
	out := d.out()
	must(t, d.checkpointPod(patience, out, d.ctrs...))
	d.gone()
	r, err := d.restore(nil, out)
	must(t, err)
	if len(r.GetRestoredContainers()) != 2 || r.GetPodSandboxId() == "" {
		t.Fatalf("answer %v", r)
	}
	must(t, os.RemoveAll(out)) // the caller may remove it
	d.restart()
	for i, c := range r.GetRestoredContainers() {
		if c.GetName() != d.configs[i].GetMetadata().GetName() {
			t.Errorf("container %d is %q", i, c.GetName())
		}
		if s := d.status(c.GetContainerId()).GetState(); s != cri.ContainerState_CONTAINER_CREATED {
			t.Errorf("it is %s", s)
		}
	}
	if got, err := d.runtime.Restored(); err != nil || len(got) != 0 {
		t.Errorf("restored before their start: %q, %v", got, err)
	}
	for i, c := range r.GetRestoredContainers() {
		must(t, d.tryStart(t.Context(), c.GetContainerId()))
		// The recording runtime runs the command anew: it finds the file that was there.
		waitFor(t, "it to count on", func() bool { return d.exec(c.GetContainerId(), "cat", "/count") == "2\n" })
		if got, err := d.runtime.Restored(); err != nil || len(got) != i+1 || got[i] != d.ctrs[i] {
			t.Errorf("restored %q, %v", got, err)
		}
	}
	d.restart() // restored ones are as others
	d.remove(r.GetPodSandboxId())
	d.same()
}

// TestRestorePodFails has what is refused, and what fails half-way: nothing is left.
func TestRestorePodFails(t *testing.T) {
	d := newDumps(t, ownShim)
	out := d.out()
	must(t, d.checkpointPod(patience, out, d.ctrs...))
	d.gone()
	another := func(change func(*cri.ContainerConfig)) func(*cri.RestorePodRequest) {
		return func(r *cri.RestorePodRequest) {
			c := d.ctr("one", d.configs[0].GetCommand()...)
			change(c)
			r.ContainerConfigs[0] = c
		}
	}
	own := d.image("another", func(c *v1.Config) { c.Labels = map[string]string{"a": "b"} })
	d.before = d.count()
	for what, change := range map[string]func(*cri.RestorePodRequest){
		"no containers":    func(r *cri.RestorePodRequest) { r.ContainerConfigs = nil },
		"one too few":      func(r *cri.RestorePodRequest) { r.ContainerConfigs = r.ContainerConfigs[:1] },
		"one twice":        func(r *cri.RestorePodRequest) { r.ContainerConfigs[1] = r.ContainerConfigs[0] },
		"another name":     another(func(c *cri.ContainerConfig) { c.Metadata.Name = "three" }),
		"another command":  another(func(c *cri.ContainerConfig) { c.Command = []string{"sleep", "1"} }),
		"another user":     another(func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1} }),
		"another variable": another(func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("B")}} }),
		"another image":    another(func(c *cri.ContainerConfig) { c.Image.Image = own }),
		"one more mount": another(func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: d.dir, ContainerPath: "/mnt"}}
		}),
		"an option":       func(r *cri.RestorePodRequest) { r.Options = map[string]string{"a": "b"} },
		"unknown handler": func(r *cri.RestorePodRequest) { r.RuntimeHandler = "nothing" },
		"another runtime": func(r *cri.RestorePodRequest) { r.RuntimeHandler = "" },
		"no checkpoint":   func(r *cri.RestorePodRequest) { r.CheckpointPath = d.dir },
		"a relative path": func(r *cri.RestorePodRequest) { r.CheckpointPath = "out" },
	} {
		_, err := d.restore(change, out)
		wantCode(t, what, err, codes.InvalidArgument)
		d.same()
	}
	_, err := d.client.RestorePod(t.Context(), &cri.RestorePodRequest{CheckpointPath: out})
	wantCode(t, "no deadline", err, codes.InvalidArgument)
	for _, fault := range []string{"do:network=fail", "do:spec=fail"} {
		d.fault(fault)
		if _, err := d.restore(nil, out); err == nil {
			t.Errorf("%s: it succeeded", fault)
		}
		d.fault()
		d.same()
	}
	d.killAt("do:spec=hang", func() { _, _ = d.restore(nil, out) })
	waitFor(t, "the half-made pod to be gone", func() bool { return len(d.pods()) == 0 })
	d.same()
	d.startFails(out)
}

// startFails has processes that cannot be restored.
func (d *dumps) startFails(out string) {
	d.t.Helper()
	r, err := d.restore(nil, out)
	must(d.t, err)
	d.order("restore", "", "fail")
	id := r.GetRestoredContainers()[0].GetContainerId()
	if err := d.tryStart(d.t.Context(), id); err == nil || !strings.Contains(err.Error(), "made to fail") {
		d.t.Errorf("a restoration that fails: %v", err)
	}
	if s := d.status(id); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetReason() != "StartError" {
		d.t.Errorf("it is %s (%s)", s.GetState(), s.GetReason())
	}
	d.remove(r.GetPodSandboxId())
	d.same()
}

// TestCase92CheckpointImage makes a container from an image that says it is a checkpoint:
// it is an image like others, and no other image changes its name.
func TestCase92CheckpointImage(t *testing.T) {
	d := newDumps(t, ownShim)
	before, err := d.client.ListImages(t.Context(), &cri.ListImagesRequest{})
	must(t, err)
	img, ok := mutate.Annotations(d.base(), map[string]string{
		"org.criu.checkpoint.container.name": "one", "io.kubernetes.cri-o.annotations.checkpoint.name": "one",
		"org.criu.checkpoint.rootfsImageName": "registry.k8s.io/pause:3.10.1", "cdi.k8s.io/x": "vendor.com/device=all",
	}).(v1.Image)
	if !ok {
		t.Fatal("it is no image")
	}
	d.push("checkpoint", img)
	d.pull("cases.example/checkpoint")
	c := d.started(d.pod, d.cfg, d.ctrOf("cases.example/checkpoint", "c", "sh", "-c", "echo ran"))
	if s := d.exited(c); s.GetExitCode() != 0 || len(s.GetMounts()) != 0 {
		t.Errorf("it ended so: %v", s)
	}
	if got, err := d.runtime.Restored(); err != nil || len(got) != 0 {
		t.Errorf("restored %q, %v", got, err)
	}
	after, err := d.client.ListImages(t.Context(), &cri.ListImagesRequest{})
	must(t, err)
	names := func(list []*cri.Image) map[string]string {
		ids := map[string]string{}
		for _, i := range list {
			for _, tag := range i.GetRepoTags() {
				ids[tag] = i.GetId()
			}
		}
		return ids
	}
	now := names(after.GetImages())
	for tag, id := range names(before.GetImages()) {
		if now[tag] != id {
			t.Errorf("%s is %s, and was %s", tag, now[tag], id)
		}
	}
	d.remove(d.pod)
}
