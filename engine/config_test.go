// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/engine"
)

// secondNet fills the slot of net.
type secondNet struct{ netAct }

func TestRefusedAtStart(t *testing.T) {
	cases := []struct {
		name             string
		change           func(c config)
		path, msg, known string
	}{
		{
			"unknown action", steps3("pod", "create", "files", "nat", "shim"),
			"workflows.pod.create.steps[1][0]", `unknown action "nat"`, "files net ns rootfs shim spec task",
		}, {
			"action twice", steps3("pod", "create", "files", "net", "files"),
			"workflows.pod.create.steps[2][0]", `action "files" is already at workflows.pod.create.steps[0][0]`, "",
		}, {
			"action twice in one step", steps3("pod", "create", "files", "net", "shim shim"),
			"workflows.pod.create.steps[2][1]", `action "shim" is already at workflows.pod.create.steps[2][0]`, "",
		}, {
			"action of create again in start", steps3("ctr", "start", "task", "spec"),
			"workflows.ctr.start.steps[1][0]", `action "spec" is already at workflows.ctr.create.steps[1][0]`, "",
		}, {
			"needs nobody fills", steps3("pod", "create", "files", "shim"),
			"workflows.pod.create.steps[1][0]", `action "shim" needs slot "test.address", which no earlier step fills`, "",
		}, {
			"needs what the same step fills", steps3("pod", "create", "files", "net shim"),
			"workflows.pod.create.steps[1][1]", `action "shim" needs slot "test.address", which no earlier step fills`, "",
		}, {
			"two fill one slot", steps3("pod", "create", "net", "net2"),
			"workflows.pod.create.steps[1][0]", `action "net2" fills slot "test.address", which is filled by action "net"`, "",
		}, {
			"empty step", steps3("pod", "create", "files", "", "net"),
			"workflows.pod.create.steps[1]", "the step is empty", "files net ns rootfs shim spec task",
		}, {
			"no steps", steps3("pod", "create"),
			"workflows.pod.create.steps", "the flow has no steps", "files net ns rootfs shim spec task",
		}, {
			"left out going down", steps3("pod", "destroy", "shim", "files ns"),
			"workflows.pod.destroy.steps", `action "net" is left out: what goes up must come down`, "shim net files ns",
		}, {
			"not in what goes up", steps3("ctr", "stop", "task", "spec"),
			"workflows.ctr.stop.steps[1][0]", `action "spec" is in no flow that stop undoes`, "task",
		}, {
			"twice going down", steps3("pod", "destroy", "shim", "net", "files ns net"),
			"workflows.pod.destroy.steps[2][2]", `action "net" is in the flow twice`, "",
		}, {
			"unknown workflow", func(c config) { c["pot"] = c["pod"] },
			"workflows.pot", "unknown workflow", "ctr image pod",
		}, {
			"unknown flow", func(c config) { c["pod"]["creat"] = engine.FlowConfig{} },
			"workflows.pod.creat", "unknown flow", "cleanup create destroy",
		}, {
			"negative limit", func(c config) { c["image"]["pull"] = engine.FlowConfig{Concurrent: -1} },
			"workflows.image.pull.concurrent", "-1 is negative; 0 is unlimited", "",
		}, {
			"negative queue", func(c config) { c["image"]["pull"] = engine.FlowConfig{Queue: -2} },
			"workflows.image.pull.queue", "-2 is negative; 0 is no queue", "",
		}, {
			"steps of a job", steps3("image", "pull", "net"),
			"workflows.image.pull.steps", "this flow has no steps", "",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w, cfg := newWorld(), defaults()
			c.change(cfg)
			o := options(w, newMemory())
			o.Lookup = func(name string) (engine.Action, bool) {
				if name == "net2" {
					return &secondNet{}, true
				}
				return w.lookup(name)
			}
			_, err := engine.New(o, []engine.Definition{podDef, ctrDef, imageDef}, cfg)
			var refused *engine.ConfigError
			if !errors.As(err, &refused) {
				t.Fatalf("not refused: %v", err)
			}
			equal(t, "path", refused.Path, c.path)
			equal(t, "msg", refused.Msg, c.msg)
			equal(t, "known", strings.Join(refused.Known, " "), c.known)
			if c.known != "" && !strings.Contains(err.Error(), strings.Join(refused.Known, ", ")) {
				t.Errorf("the text has no list of what is known: %v", err)
			}
		})
	}
}

// steps3 replaces the steps of a flow; a word with spaces is a parallel step.
func steps3(workflow, flow string, list ...string) func(config) {
	return func(c config) {
		f := c[workflow][flow]
		f.Steps = [][]string{}
		for _, step := range list {
			f.Steps = append(f.Steps, strings.Fields(step))
		}
		c[workflow][flow] = f
	}
}

func TestDefinitionsAreChecked(t *testing.T) {
	bad := map[string]engine.Definition{
		"no name":          {},
		"slash":            {Name: "a/b"},
		"flow twice":       {Name: "pod", Up: podDef.Up, Down: []engine.FlowDef{{Name: "create", To: ""}}},
		"unknown station":  {Name: "pod", Up: podDef.Up, Down: []engine.FlowDef{{Name: "destroy", To: "cellar"}}},
		"never down":       {Name: "pod", Up: podDef.Up, Down: podDef.Down[:1]},
		"station twice":    {Name: "pod", Up: []engine.FlowDef{{Name: "create", To: "ready"}, {Name: "start", To: "ready"}}},
		"up again to down": {Name: "pod", Up: podDef.Up, Down: []engine.FlowDef{{Name: "cleanup", To: ""}, {Name: "destroy", To: "ready"}}},
	}
	for name, def := range bad {
		cfg := config{}
		if def.Name == "pod" {
			cfg["pod"] = map[string]engine.FlowConfig{"create": defaults()["pod"]["create"]}
		}
		var refused *engine.ConfigError
		if _, err := engine.New(options(newWorld(), newMemory()), []engine.Definition{def}, cfg); !errors.As(err, &refused) {
			t.Errorf("%s: not refused: %v", name, err)
		}
	}
	if _, err := engine.New(engine.Options{}, nil, nil); err == nil {
		t.Error("no journal is accepted")
	}
}

func TestOwnOrderGoingDown(t *testing.T) {
	w, cfg := newWorld(), defaults()
	steps3("pod", "destroy", "net", "shim files", "ns")(cfg)
	b := &bench{Engine: start(t, options(w, newMemory()), cfg), t: t, w: w}
	b.must("pod create 1")
	b.must("pod cleanup 1")
	want := []string{"undo-net", "undo-files", "undo-shim", "undo-ns"}
	for i, event := range w.events[4:] {
		if i == 1 || i == 2 { // side by side
			continue
		}
		equal(t, "going down", event, want[i])
	}
	w.reset()
	w.set("do-net", errBoom)
	isError(t, b.do(t.Context(), "pod create 2"), errBoom)
	equal(t, "rollback takes the same way", strings.Join(w.events[3:], " "), "undo-net undo-files undo-ns")
	for _, f := range b.Flows() {
		if f.Flow == "destroy" {
			equal(t, "steps", strings.Join(f.Steps[1], " "), "shim files")
		}
	}
}
