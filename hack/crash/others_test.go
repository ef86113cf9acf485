// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandflow-cri/sandflow/hack/world"
)

// other is somebody else's death.
type other struct {
	who, when string
	handler   string
	stage     int // the call it is in, or after which it is
	// fault is the daemon's, program and text those of a mortal program; neither: the shim is
	// killed when the call is over.
	fault, program, text string
}

func others() []other {
	var out []other
	for i, s := range stages[:4] {
		out = append(out, other{who: "shim", when: "after " + s.name, stage: i})
	}
	for place, stage := range map[string]int{
		"container.start/do:task": 2, "container.stop/undo:task": 3, "container.remove/undo:rootfs": 4,
		"sandbox.destroy/undo:shim": 5, "sandbox.destroy/undo:network": 5, "container.create/do:spec": 1,
	} {
		for how, word := range map[string]string{"killshim": "before ", "killshimafter": "after "} {
			out = append(out, other{who: "shim", when: word + place, stage: stage, fault: place + "=" + how})
		}
	}
	for verb, stage := range map[string]int{"create": 2, "start": 2, "kill": 3, "delete": 3} {
		for _, when := range []string{"before", "0.01", "0.03", "after"} {
			out = append(out, other{who: "runc " + verb, when: atWhat(when), handler: "mortal", stage: stage, program: "runc", text: when + " " + verb})
		}
	}
	for verb, stage := range map[string]int{"ADD": 0, "DEL": 5} {
		for _, plugin := range []string{"bridge", "portmap"} {
			for _, when := range []string{"before", "0.005", "0.01", "0.02", "after"} {
				out = append(out, other{who: plugin + " " + verb, when: atWhat(when), stage: stage, program: plugin, text: when + " " + verb})
			}
		}
	}
	slices.SortFunc(out, func(a, b other) int {
		if c := a.stage - b.stage; c != 0 {
			return c
		}
		return strings.Compare(a.who+a.when, b.who+b.when)
	})
	return out
}

func atWhat(when string) string {
	if strings.HasPrefix(when, "0.") {
		return when + " s after its start"
	}
	if when == "before" {
		return "before it begins"
	}
	return "when it has done its work"
}

// deaths kills the shim, the OCI runtime and CNI plugins while the daemon lives.
func (n *node) deaths() {
	for i, o := range others() {
		if !full() && i%5 != 0 {
			continue
		}
		n.try(o.who+" "+o.when, func() {
			answer, found := n.death(o)
			report("others", o.who, o.when+" in "+stages[o.stage].name, answer, found)
		})
	}
}

func (n *node) death(o other) (answer, found string) {
	n.t.Helper()
	l := n.life(o.handler)
	must(n.t, l.span(0, o.stage))
	n.quiet()
	if o.fault != "" {
		n.fault(o.fault)
	}
	if o.program != "" {
		n.killing(o.program, o.text)
	}
	err := l.do(stages[o.stage])
	if o.fault == "" && o.program == "" {
		must(n.t, err)
		n.killShims()
	}
	n.quiet()
	if o.fault != "" && !n.used(o.fault) {
		n.t.Errorf("%s is not reached", o.fault)
	}
	n.fault()
	if o.program != "" {
		n.killing(o.program, "")
	}
	answer, found = code(err), l.settled()
	n.noStuck()
	n.finish(l)
	return answer, found
}

// settled is the state after the daemon has seen to what has ended.
func (l *life) settled() string {
	was := ""
	l.n.waitFor("the state to stay the same", func() bool {
		l.n.quiet()
		now := l.state()
		defer func() { was = now }()
		return now == was
	})
	return was
}

// noStuck waits until all that was stuck is gone.
func (n *node) noStuck() {
	n.t.Helper()
	n.waitFor("what is stuck to go", func() bool {
		_, s := n.flows()
		return len(s) == 0
	})
}

// finish removes a pod, and checks the node.
func (n *node) finish(l *life) {
	n.t.Helper()
	n.retire(l)
	n.healthy()
	n.same()
}

// retire removes a pod as kubelet does with one that is not well.
func (n *node) retire(l *life) {
	n.t.Helper()
	ctx, cancel := l.context()
	defer cancel()
	p, err := l.findPod(ctx)
	must(n.t, err)
	if p != nil {
		l.pod = p.GetId()
		if err := errors.Join(l.stopPod(ctx), l.removePod(ctx)); err != nil {
			n.t.Errorf("the pod cannot be removed: %v", err)
		}
	}
}

// reboots takes away all that a reboot takes, after each call, and in the middle of some.
func (n *node) reboots() {
	n.without = []string{"firewall rules"} // those that only the first pod makes are lost too
	type place struct {
		when  string
		stage int
		fault string
	}
	var places []place
	for i, s := range stages[:6] {
		places = append(places, place{"after " + s.name, i + 1, ""})
	}
	for i, fault := range map[int]string{0: "sandbox.create/do:network", 2: "container.start/do:task", 5: "sandbox.destroy/undo:shim"} {
		places = append(places, place{"after " + fault, i, fault + "=killafter"})
	}
	for i, p := range places {
		if !full() && i%3 != 2 {
			continue
		}
		n.try(p.when, func() {
			l := n.life("")
			must(n.t, l.span(0, p.stage))
			if p.fault != "" {
				n.fault(p.fault)
				if !n.dies(func() { _ = l.do(stages[p.stage]) }) {
					n.t.Fatalf("%s is not reached", p.fault)
				}
			}
			must(n.t, n.daemon.Kill())
			n.fault()
			n.powerOff()
			must(n.t, n.daemon.Start(n.t.Context()))
			found := l.state() // the first answer is right
			if found == "ready" || found == "running" || found == "created" {
				n.t.Errorf("after a reboot it is said to be %s", found)
			}
			n.finish(l)
			report("others", "everything at once, with the state directory lost (a reboot)", p.when, "", found)
		})
	}
}

// powerOff ends all processes of pods, and takes away the state directory with what is mounted in
// it, cgroups and firewall rules.
func (n *node) powerOff() {
	n.t.Helper()
	n.waitFor("the end of all processes of pods", func() bool { return n.killLeftovers() == 0 })
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(n.daemon.State))
	must(n.t, err)
	slices.Reverse(all)
	for _, m := range all {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			n.t.Fatal(fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	must(n.t, os.RemoveAll(n.daemon.State))
	// What the kernel loses.
	must(n.t, exec.CommandContext(n.t.Context(), "nft", "flush", "ruleset").Run())
	where := n.where()
	where.Containerd = ""
	left, err := world.Count(n.t.Context(), where)
	must(n.t, err)
	for _, dir := range slices.Backward(left["cgroups"]) { // the deepest first
		n.waitFor("the end of a cgroup", func() bool { return os.Remove(dir) == nil })
	}
}
