// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stats reads what containers and pods use: from their cgroups, v1 or
// v2, and from the network interfaces of their namespace. It speaks to no shim, so
// that a hung one cannot stall it.
package stats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/steps/spec/cgroups"
)

// Options of New; the zero value is for this node.
type Options struct {
	// Host says where cgroups are mounted; nil detects it.
	Host *cgroups.Host
	// Now is the clock.
	Now func() time.Time
}

// Reader reads usage and remembers, per container and pod, the samples that CPU
// rates are made from. The samples are shared by all who ask. It may be used by
// several goroutines at once.
type Reader struct {
	host  cgroups.Host
	now   func() time.Time
	began time.Time
	rates rates
	pods  totals
}

// New returns a Reader.
func New(o Options) *Reader {
	r := &Reader{now: o.Now}
	if r.now == nil {
		r.now = time.Now
	}
	r.began = r.now()
	if o.Host != nil {
		r.host = *o.Host
	} else {
		r.host = cgroups.Detect()
	}
	return r
}

// Usage is what one cgroup uses. A nil part is not known on this node.
type Usage struct {
	CPU    *runtime.CpuUsage
	Memory *runtime.MemoryUsage
	Swap   *runtime.SwapUsage
	IO     *runtime.IoUsage

	dir   string   // of the cgroup, where its processes are listed
	parts []*Usage // that this is the sum of
}

// Processes counts those in the cgroup and below it, now. One that has gone has none.
func (u *Usage) Processes() (uint64, error) {
	var sum uint64
	for _, p := range u.parts {
		n, err := p.Processes()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if u.dir == "" {
		return sum, nil
	}
	n, err := processes(u.dir)
	if errors.Is(err, errdefs.ErrNotFound) {
		err = nil
	}
	return sum + n, err
}

// Container reads the usage of container id, whose OCI spec has cgroupsPath.
// usage_nano_cores is unset until there are two samples. A container without a
// cgroup (it does not run) is errdefs.ErrNotFound.
func (r *Reader) Container(ctx context.Context, id, cgroupsPath string) (*Usage, error) {
	u, err := r.read(ctx, cgroups.Dir(cgroupsPath))
	if err != nil {
		return nil, fmt.Errorf("read stats of container %s: %w", id, err)
	}
	r.rates.fill(id, u.CPU, r.now().Sub(r.began))
	return u, nil
}

// Member is a container of a pod with its usage as read by Container.
type Member struct {
	ID    string
	Usage *Usage
}

// Pod gives the usage of a whole pod. With dir, the cgroup that is the pod's alone
// (below the controllers' mount points), that is read, and so covers the shim's
// overhead and containers that have gone. Without (""), or before there is one, it
// is the sum of the members; what a member that is gone had used of the CPU stays
// in the sum.
func (r *Reader) Pod(ctx context.Context, id, dir string, members []Member) (*Usage, error) {
	u, err := r.sum(id, members), error(nil)
	if dir != "" {
		if own, notYet := r.read(ctx, dir); !errors.Is(notYet, errdefs.ErrNotFound) {
			u, err = own, notYet
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read stats of sandbox %s: %w", id, err)
	}
	r.rates.fill(id, u.CPU, r.now().Sub(r.began))
	return u, nil
}

// Forget drops what is remembered of a container or pod.
func (r *Reader) Forget(id string) {
	r.rates.forget(id)
	r.pods.forget(id)
}

func (r *Reader) read(ctx context.Context, dir string) (*Usage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.host.Unified {
		return r.readV2(dir)
	}
	return r.readV1(dir)
}

// mountOf is where a controller is mounted.
func (r *Reader) mountOf(controller string) (string, error) {
	root, ok := r.host.Mounts[controller]
	if !ok {
		return "", fmt.Errorf("this node has no cgroup controller %s: %w", controller, errdefs.ErrNotImplemented)
	}
	return root, nil
}

func value(v uint64) *runtime.UInt64Value { return &runtime.UInt64Value{Value: v} }

// less is a-b, but never below zero: the two counters are not read at the same instant.
func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}
