// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/interceptors"
	"github.com/sandflow-cri/sandflow/engine"
	"github.com/sandflow-cri/sandflow/steps"
	"github.com/sandflow-cri/sandflow/steps/spec"
)

const bundleText = `{"ociVersion":"1.2.0","process":{"cwd":"/","user":{"uid":0,"gid":0},"oomScoreAdj":900},` +
	`"linux":{"resources":{"cpu":{"shares":100},"memory":{"limit":4096}}}}`

// createdWithBundle makes a created container that has a bundle.
func (r *rig) createdWithBundle(id string) (bundle string) {
	r.t.Helper()
	r.config.State = r.t.TempDir()
	r.must(r.pod("pod", nil), r.container("pod", id, nil))
	bundle = r.config.ContainerDir(id)
	r.must(os.MkdirAll(bundle, 0o700))
	r.must(os.WriteFile(filepath.Join(bundle, "config.json"), []byte(bundleText), 0o600))
	return bundle
}

func (r *rig) update(id string, limits *criapi.LinuxContainerResources) error {
	_, err := r.client.UpdateContainerResources(r.t.Context(), &criapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: limits})
	return err
}

func (r *rig) told(id string) *criapi.LinuxContainerResources {
	r.t.Helper()
	s, err := r.client.ContainerStatus(r.t.Context(), &criapi.ContainerStatusRequest{ContainerId: id})
	r.must(err)
	return s.GetStatus().GetResources().GetLinux()
}

// Whichever of its writes fails, an update that fails has changed neither the bundle nor what
// is told, and the next one works.
func TestUpdateThatIsNotJournaledChangesNothing(t *testing.T) {
	const writes = 2
	for after := range writes {
		r := newRig(t)
		bundle := r.createdWithBundle("ctr")
		r.must(r.update("ctr", &criapi.LinuxContainerResources{CpuShares: 200}))
		before, err := spec.ReadLimits(bundle)
		r.must(err)
		r.journal.fills(after)
		err = r.update("ctr", &criapi.LinuxContainerResources{MemoryLimitInBytes: 8192, OomScoreAdj: 950})
		if interceptors.Code(err) != codes.ResourceExhausted {
			t.Errorf("after %d writes: %v", after, err)
		}
		now, err := spec.ReadLimits(bundle)
		r.must(err)
		if *now.Resources.Memory.Limit != *before.Resources.Memory.Limit || *now.OOMScoreAdj != 900 || *now.Resources.CPU.Shares != 200 {
			t.Errorf("after %d writes the bundle has %+v, %+v", after, now.Resources.Memory, now.OOMScoreAdj)
		}
		if got := r.told("ctr"); got.GetMemoryLimitInBytes() != 0 || got.GetCpuShares() != 200 {
			t.Errorf("after %d writes it is told that %v", after, got)
		}
		r.journal.fills(-1)
		r.must(r.update("ctr", &criapi.LinuxContainerResources{MemoryLimitInBytes: 8192, OomScoreAdj: 950}))
		now, err = spec.ReadLimits(bundle)
		r.must(err)
		if got := r.told("ctr"); *now.Resources.Memory.Limit != 8192 || *now.OOMScoreAdj != 950 || got.GetMemoryLimitInBytes() != 8192 || got.GetOomScoreAdj() != 950 {
			t.Errorf("a good update: told %v, bundle %+v", got, now)
		}
		v, _ := r.engine.Get(steps.Container, "ctr")
		if left, _, err := steps.ContainerBefore.Get(v); err != nil || !left.None() {
			t.Errorf("the record keeps %+v, %v", left, err)
		}
	}
}

// What a daemon before this one has begun is put back.
func TestLimitsAreMended(t *testing.T) {
	r := newRig(t)
	bundle := r.createdWithBundle("ctr")
	had, err := spec.ReadLimits(bundle)
	r.must(err)
	note := steps.ContainerBefore.With(steps.Before{Bundle: had.Resources, OOMScoreAdj: had.OOMScoreAdj})
	r.must(r.engine.Amend(t.Context(), steps.Container, "ctr", note))
	r.must(spec.UpdateBundle(bundle, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: new(int64(8192))}}, 0))
	r.mendLimits(t.Context())
	now, err := spec.ReadLimits(bundle)
	r.must(err)
	v, _ := r.engine.Get(steps.Container, "ctr")
	left, _, err := steps.ContainerBefore.Get(v)
	if err != nil || *now.Resources.Memory.Limit != 4096 || !left.None() {
		t.Errorf("the bundle has %+v, the record %+v, %v", now.Resources.Memory, left, err)
	}
}

// A plugin's update does not wait for a container that is moving: the move may wait for it.
func TestUpdateByAPluginDoesNotWait(t *testing.T) {
	r := newRig(t)
	r.createdWithBundle("ctr")
	err := r.engine.Hold(t.Context(), steps.Container, "ctr", func(ctx context.Context, _ *engine.View) error {
		return r.holdShortly(ctx, "ctr", func(context.Context, *engine.View) error { return nil })
	})
	if !errors.Is(err, errMoving) {
		t.Errorf("got %v", err)
	}
	r.must(r.holdShortly(t.Context(), "ctr", func(context.Context, *engine.View) error { return nil }))
}

// The same holds for the limits of a pod.
func TestUpdateOfAPodThatIsNotJournaled(t *testing.T) {
	r := newRig(t)
	asked, later := &criapi.LinuxContainerResources{CpuShares: 2}, &criapi.LinuxContainerResources{CpuShares: 4}
	r.must(r.pod("pod1", &criapi.PodSandboxConfig{Linux: &criapi.LinuxPodSandboxConfig{Resources: asked}}))
	update := func(want *criapi.LinuxContainerResources) error {
		_, err := r.client.UpdatePodSandboxResources(t.Context(), &criapi.UpdatePodSandboxResourcesRequest{
			PodSandboxId: "pod1", Overhead: want, Resources: want,
		})
		return err
	}
	r.journal.fills(0)
	if err := update(later); interceptors.Code(err) != codes.ResourceExhausted {
		t.Errorf("a full disk gives %v", err)
	}
	p, err := r.findPod("pod1")
	r.must(err)
	if !proto.Equal(p.resources(), asked) || p.overhead() != nil {
		t.Errorf("it is told that %v, %v", p.resources(), p.overhead())
	}
	r.journal.fills(-1)
	r.must(update(later))
	p, err = r.findPod("pod1")
	r.must(err)
	if !proto.Equal(p.resources(), later) || !proto.Equal(p.overhead(), later) {
		t.Errorf("after a good update: %v, %v", p.resources(), p.overhead())
	}
}
