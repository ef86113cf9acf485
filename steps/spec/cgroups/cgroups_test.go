// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
)

// Case 71: driver and parent must agree.
func TestPath(t *testing.T) {
	for _, c := range []struct{ driver, parent, want, dir string }{
		{Cgroupfs, "/kubepods/burstable/podx", "/kubepods/burstable/podx/id", "/kubepods/burstable/podx/id"},
		{Cgroupfs, "kubepods//podx/", "/kubepods/podx/id", "/kubepods/podx/id"},
		{"", "/sandflow", "/sandflow/id", "/sandflow/id"},
		{Systemd, "kubepods-burstable-podx.slice", "kubepods-burstable-podx.slice:sandflow:id", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/sandflow-id.scope"},
		{Systemd, "/kubepods.slice/kubepods-podx.slice", "kubepods-podx.slice:sandflow:id", "/kubepods.slice/kubepods-podx.slice/sandflow-id.scope"},
	} {
		got, err := Path(c.driver, c.parent, "id")
		if err != nil || got != c.want || Dir(got) != c.dir {
			t.Errorf("%s %q: got %q (%s), %v, want %q (%s)", c.driver, c.parent, got, Dir(got), err, c.want, c.dir)
		}
	}
}

func TestPathRefused(t *testing.T) {
	for _, c := range []struct{ driver, parent string }{
		{Cgroupfs, "kubepods-podx.slice"}, {Cgroupfs, "/a/../../b"}, {Cgroupfs, ".."}, {Systemd, "/kubepods/podx"}, {Systemd, "a--b.slice"},
		{Systemd, ".slice"}, {Systemd, "-a.slice"}, {Cgroupfs, "a:b"}, {Systemd, "x/../y.slice"},
	} {
		_, err := Path(c.driver, c.parent, "id")
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.driver) || !strings.Contains(err.Error(), c.parent) {
			t.Errorf("%s %q: %v", c.driver, c.parent, err)
		}
	}
	if _, err := Path("runit", "/a", "id"); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Error(err)
	}
}

func TestSlice(t *testing.T) {
	for in, want := range map[string]string{"/sandflow": "sandflow.slice", "": "sandflow.slice", "a.slice": "a.slice", "/x/a.slice": "a.slice"} {
		if got := Slice(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestLegacyMounts(t *testing.T) {
	h := legacy([]*mountinfo.Info{
		{Mountpoint: "/cg/cpu,cpuacct", VFSOptions: "rw,cpu,cpuacct"}, {Mountpoint: "/cg/memory", VFSOptions: "rw,memory"}, {Mountpoint: "/other", VFSOptions: "rw,memory"},
	})
	if h.Mounts["cpuacct"] != "/cg/cpu,cpuacct" || h.Mounts["memory"] != "/cg/memory" || h.Has("hugetlb") || h.Has("rw") {
		t.Errorf("%+v", h)
	}
}

func FuzzPath(f *testing.F) {
	f.Add(Cgroupfs, "/a/b")
	f.Add(Systemd, "a-b.slice")
	f.Fuzz(func(t *testing.T, driver, parent string) {
		p, err := Path(driver, parent, "id")
		if err == nil && strings.Contains("/"+Dir(p)+"/", "/../") {
			t.Errorf("%q leaves the hierarchy: %q", parent, p)
		}
	})
}
