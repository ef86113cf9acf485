// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics makes the CRI's pod and container metrics: those that kubelet takes
// from cAdvisor elsewhere, under the same names and labels. One table describes them
// and makes their values, so that the two cannot differ.
package metrics

import (
	"slices"
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/cri/stats"
)

// Labels that every metric has. Those of a pod as a whole have no container and no
// image; their name is the sandbox's ID, as cAdvisor has it for sandbox containers.
type Labels struct {
	Container string // name of the container
	ID        string // its cgroup, as cAdvisor has it
	Image     string
	Name      string // ID of the container
	Namespace string
	Pod       string
}

var baseKeys = []string{"container", "id", "image", "name", "namespace", "pod"}

func (l Labels) values() []string {
	return []string{l.Container, l.ID, l.Image, l.Name, l.Namespace, l.Pod}
}

// Sample is what was read of a container or a pod. What is nil gives no metrics.
type Sample struct {
	Detail     *stats.Detail
	Processes  *Processes        // of a container
	Disk       *Disk             // of a container
	Interfaces []stats.Interface // of a pod
	Seen       time.Time
	Started    time.Time // zero if it is not known
	// DeviceName gives the path of a block device.
	DeviceName func(major, minor uint64) string
}

// Processes of a container.
type Processes struct {
	Count, Files, Sockets uint64
	OpenFiles             *uint64 // soft limit of the first process; nil is none
}

// Disk is the file system of a container's writable layer.
type Disk struct {
	stats.FileSystem
	Used uint64 // bytes
}

// point is one value, with the values of the metric's own labels.
type point struct {
	labels []string
	value  uint64
}

// metric is a row of the table.
type metric struct {
	name, help string
	kind       runtime.MetricType
	labels     []string // besides the base
	read       func(s *Sample) []point
}

// Descriptors describes all metrics, sorted by name.
func Descriptors() []*runtime.MetricDescriptor {
	all := make([]*runtime.MetricDescriptor, 0, len(table))
	for _, m := range table {
		all = append(all, &runtime.MetricDescriptor{
			Name: m.name, Help: m.help, LabelKeys: slices.Concat(baseKeys, m.labels),
		})
	}
	slices.SortFunc(all, func(a, b *runtime.MetricDescriptor) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// Collect makes the metrics of a sample. Their time is unset: they are read live.
func Collect(l Labels, s Sample) []*runtime.Metric {
	base := l.values()
	var all []*runtime.Metric
	for _, m := range table {
		for _, p := range m.read(&s) {
			all = append(all, &runtime.Metric{
				Name: m.name, MetricType: m.kind, LabelValues: slices.Concat(base, p.labels),
				Value: &runtime.UInt64Value{Value: p.value},
			})
		}
	}
	return all
}

// one is the point of a value that may not be known.
func one(n *uint64, labels ...string) []point {
	if n == nil {
		return nil
	}
	return []point{{labels, *n}}
}

// seconds are whole ones: the CRI carries no fractions.
func seconds(nanoseconds *uint64, labels ...string) []point {
	if nanoseconds == nil {
		return nil
	}
	return []point{{labels, *nanoseconds / uint64(time.Second)}}
}

func detail(read func(d *stats.Detail) []point) func(*Sample) []point {
	return func(s *Sample) []point {
		if s.Detail == nil {
			return nil
		}
		return read(s.Detail)
	}
}

func memory(field func(m *stats.MemoryDetail) *uint64) func(*Sample) []point {
	return detail(func(d *stats.Detail) []point { return one(field(&d.Memory)) })
}

func limit(field func(l *stats.Limits) *uint64) func(*Sample) []point {
	return detail(func(d *stats.Detail) []point { return one(field(&d.Limits)) })
}

// throttling is told of cgroups with a quota only, as cAdvisor does.
func throttling(read func(c *stats.CPUDetail) []point) func(*Sample) []point {
	return detail(func(d *stats.Detail) []point {
		if d.Limits.CPUQuota == nil || *d.Limits.CPUQuota == 0 {
			return nil
		}
		return read(&d.CPU)
	})
}

func processes(read func(p *Processes) []point) func(*Sample) []point {
	return func(s *Sample) []point {
		if s.Processes == nil {
			return nil
		}
		return read(s.Processes)
	}
}

func disk(field func(d *Disk) uint64) func(*Sample) []point {
	return func(s *Sample) []point {
		if s.Disk == nil {
			return nil
		}
		return []point{{[]string{s.Disk.Device}, field(s.Disk)}}
	}
}

func perDevice(field func(d *stats.DeviceIO) uint64) func(*Sample) []point {
	return func(s *Sample) []point {
		if s.Detail == nil {
			return nil
		}
		var all []point
		for _, d := range s.Detail.Devices {
			all = append(all, point{[]string{s.DeviceName(d.Major, d.Minor)}, field(&d)})
		}
		return all
	}
}

func network(field func(i *stats.Interface) uint64) func(*Sample) []point {
	return func(s *Sample) []point {
		var all []point
		for _, i := range s.Interfaces {
			all = append(all, point{[]string{i.Name}, field(&i)})
		}
		return all
	}
}

func pressure(field func(d *stats.Detail) *runtime.PsiStats, part func(*runtime.PsiStats) *runtime.PsiData) func(*Sample) []point {
	return detail(func(d *stats.Detail) []point {
		data := part(field(d))
		if data == nil {
			return nil
		}
		return seconds(new(data.GetTotal()))
	})
}

func unix(at func(s *Sample) time.Time) func(*Sample) []point {
	return func(s *Sample) []point {
		if t := at(s); !t.IsZero() {
			return []point{{value: uint64(max(t.Unix(), 0))}} //nolint:gosec // not negative
		}
		return nil
	}
}
