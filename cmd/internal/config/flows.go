// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
)

// flow and workflow are the one list of all flows, whatever their kind.
type flow struct {
	name              string
	concurrent, queue int
	failover          bool
	steps             [][]string
}

type workflow struct {
	name  string
	flows []flow
}

func (f UpFlow) flow(name string) flow {
	return flow{name: name, concurrent: f.Concurrent, queue: f.Queue, failover: f.Failover, steps: f.Steps}
}

func (f DownFlow) flow(name string) flow {
	return flow{name: name, concurrent: f.Concurrent, queue: f.Queue, steps: f.Steps}
}

func (f JobFlow) flow(name string) flow {
	return flow{name: name, concurrent: f.Concurrent, queue: f.Queue}
}

func (c *Config) flows() []workflow {
	w := c.Workflows
	return []workflow{
		{"sandbox", []flow{
			w.Sandbox.Create.flow("create"), w.Sandbox.Destroy.flow("destroy"), w.Sandbox.Cleanup.flow("cleanup"),
		}},
		{"container", []flow{
			w.Container.Create.flow("create"), w.Container.Start.flow("start"),
			w.Container.Stop.flow("stop"), w.Container.Remove.flow("remove"),
		}},
		{"image", []flow{w.Image.Pull.flow("pull")}},
	}
}

// CgroupDriver is the driver in force: "auto" is decided by what runs the node.
func (c *Config) CgroupDriver() string {
	if c.Runtime.CgroupDriver != DriverAuto {
		return c.Runtime.CgroupDriver
	}
	// The test that sd_booted(3) makes.
	if st, err := os.Lstat("/run/systemd/system"); err == nil && st.IsDir() {
		return DriverSystemd
	}
	return DriverCgroupfs
}

// CgroupParent is the parent, in the form of the driver in force, of pods that name none.
func (c *Config) CgroupParent() string {
	if p := c.Runtime.DefaultCgroupParent; p != "" {
		return p
	}
	if c.CgroupDriver() == DriverSystemd {
		// Not sandflow.slice itself, which is the daemon's own (deploy/systemd).
		return "sandflow-pods.slice"
	}
	return "/sandflow"
}
