// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// disaster is something that happens to the node; lift ends it.
type disaster struct {
	name  string
	begin func(n *node) (lift func())
	mute  bool // nothing can be asked while it lasts
}

// TestNodeFails fills file systems, makes them read-only, and takes descriptors away.
func TestNodeFails(t *testing.T) {
	var root, journal, ctrd, logs string
	n := newNode(t, "", func(d *harness.Daemon) {
		root, journal, ctrd = d.Root, d.Root+".journal", filepath.Join(d.Root, "containerd")
		for dir, size := range map[string]string{root: "64m", journal: "2m"} {
			tmpfs(t, dir, size)
		}
		tmpfs(t, ctrd, "64m")
		logs = filepath.Join(filepath.Dir(d.Root), "logs", d.Name)
		tmpfs(t, logs, "1m")
		file := filepath.Join(root, "journal.db")
		must(t, os.WriteFile(filepath.Join(journal, "journal.db"), nil, 0o600))
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, unix.Mount(filepath.Join(journal, "journal.db"), file, "", unix.MS_BIND, ""))
		must(t, unix.Mount("", file, "", unix.MS_PRIVATE, ""))
		t.Cleanup(func() {
			for _, m := range []string{logs, file, ctrd, journal, root} {
				if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}
		})
	})
	for _, d := range []disaster{
		{name: "the journal's disk is full", begin: func(n *node) func() { return fill(n.t, journal) }},
		{name: "containerd's disk is full", begin: func(n *node) func() { return fill(n.t, ctrd) }},
		{name: "the root directory's disk is full", begin: func(n *node) func() { return fill(n.t, root) }},
		{name: "the root directory is read-only", begin: func(n *node) func() { return readOnly(n.t, root) }},
		{name: "containerd's root is read-only", begin: func(n *node) func() { return readOnly(n.t, ctrd) }},
		{name: "all is read-only", begin: func(n *node) func() {
			a, b, c := readOnly(n.t, root), readOnly(n.t, ctrd), readOnly(n.t, journal)
			return func() { c(); b(); a() }
		}},
		{name: "the log directory's disk is full", begin: func(n *node) func() { return fill(n.t, logs) }},
		{name: "no descriptors are left", begin: (*node).noDescriptors, mute: true},
		{name: "the limit of creates is reached", begin: (*node).noPlace},
	} {
		n.try(d.name, func() { n.disaster(d) })
	}
}

// disaster has a pod that runs be removed, and another be made, while the node is out of order.
func (n *node) disaster(d disaster) {
	n.t.Helper()
	old := n.life("")
	must(n.t, old.span(0, 3))
	talker := n.life("")
	talker.config.PortMappings = nil
	talker.ctr.Command = []string{"sh", "-c", "while sleep 0.02; do echo still here; done"}
	must(n.t, talker.span(0, 3))
	lift := d.begin(n)
	lifted := false
	defer func() {
		if !lifted {
			lift()
		}
	}()
	fresh := n.life("")
	run := fresh.do(stages[0])
	talker.ctr.Metadata.Attempt++
	ctr := talker.do(stages[1])
	stop := errors.Join(old.do(stages[5]), old.do(stages[6]))
	listed := n.meanwhile(d, old, stop)
	lift()
	lifted = true
	begun := time.Now()
	n.noStuck()
	if took := time.Since(begun); took > maxBackoff+undoTimeout {
		n.t.Errorf("what was stuck has gone %s after the fault's end", took)
	}
	talker.talks()
	if err := fresh.repeat(stages[0]); err != nil {
		n.t.Errorf("afterwards: %v", err)
	} else if err := fresh.from(1); err != nil {
		n.t.Errorf("afterwards: %v", err)
	}
	n.retire(old)
	n.finish(talker)
	report("node", d.name, code(run), code(ctr), code(stop), listed, "all is well")
}

// meanwhile says how a pod is listed that was to go. One that could not is not forgotten: it is
// not ready and stuck, with a reason, or it stands as before, if not even that could be
// written down.
func (n *node) meanwhile(d disaster, l *life, stop error) string {
	n.t.Helper()
	if d.mute { // no client can ask
		return "nobody can ask"
	}
	listed := l.state()
	if stop == nil {
		if listed != "gone" {
			n.t.Errorf("it has been removed, and is %s", listed)
		}
		return listed
	}
	if p, err := l.findPod(n.t.Context()); err != nil || p == nil {
		n.t.Errorf("it could not be removed (%v), and is not listed (%v)", stop, err)
	} else if p.GetState() == cri.PodSandboxState_SANDBOX_NOTREADY {
		n.waitFor("it to be told as stuck", func() bool { // it is not, while it is tried again
			_, stuck := n.flows()
			return slices.ContainsFunc(stuck, func(s stuckOne) bool { return s.ID == p.GetId() && s.Error != "" })
		})
		return "not ready, with the reason"
	}
	return "as before"
}

// talks checks that the container runs on and that its output is written.
func (l *life) talks() {
	l.n.t.Helper()
	path := filepath.Join(l.config.GetLogDirectory(), l.ctr.GetLogPath())
	size := func() int64 {
		st, err := os.Stat(path)
		must(l.n.t, err)
		return st.Size()
	}
	before := size()
	l.n.waitFor("output of the container that runs on", func() bool { return size() > before })
}

func tmpfs(t *testing.T, dir, size string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o711))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=711,size="+size))
	must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
}

// fill takes all space of a file system.
func fill(t *testing.T, dir string) func() {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	_ = f.Close()
	return func() { must(t, os.Remove(path)) }
}

func readOnly(t *testing.T, dir string) func() {
	t.Helper()
	// A mount of its own over it, since files are open for writing.
	must(t, unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""))
	must(t, unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, ""))
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	return func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }
}

// noDescriptors leaves the daemon those that it has.
func (n *node) noDescriptors() func() {
	pid := n.daemon.PID()
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	must(n.t, err)
	var before unix.Rlimit
	must(n.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before))
	must(n.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(open)), Max: before.Max}, nil))
	return func() { must(n.t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil)) }
}

// noPlace lets one create that hangs take the only place.
func (n *node) noPlace() func() {
	set := func(limit int) {
		if status, out := n.sandflow("flows", "set", "sandbox.create", "--limit", strconv.Itoa(limit)); status != 0 {
			n.t.Fatal(out)
		}
	}
	set(1)
	n.fault("do:network=stall")
	blocker := n.life("")
	done := make(chan error, 1)
	go func() { done <- blocker.do(stages[0]) }()
	n.waitFor("the create that hangs", func() bool { return n.used("do:network=stall") })
	return func() {
		n.fault()
		if err := <-done; err != nil {
			n.t.Error(fmt.Errorf("the one that hung: %w", err))
		}
		set(100)
		if err := blocker.from(1); err != nil {
			n.t.Error(err)
		}
	}
}
