// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sandflow-cri/sandflow/hack/harness"
	"github.com/sandflow-cri/sandflow/hack/world"
	"github.com/sandflow-cri/sandflow/steps/runtime/shimapi"
)

// older gives options for a node that runs the older daemon and shim of hack/old.sh.
func older(t *testing.T) harness.Options {
	t.Helper()
	l := lab(t)
	dir := filepath.Join(l.Build, "old")
	if _, err := os.Stat(filepath.Join(dir, "sandflowd")); err != nil {
		t.Skip("no older daemon: \"make old\" builds it, from the history of this repository")
	}
	return harness.Options{
		Program: filepath.Join(dir, "sandflowd"), Shim: filepath.Join(dir, "containerd-shim-sandflow-v1"),
		Extra: "[runtime.handlers.stock]\ntype = \"" + l.Bin("containerd-shim-runc-v2") + "\"\noptions = {BinaryName = \"" + l.Bin("runc") + "\", Root = \"/run/upgrade-stock\"}\n",
	}
}

// become puts another daemon and shim in the place of the node's own, which is down.
func (n *node) become(o harness.Options) {
	n.t.Helper()
	o.Name, o.ConfDir = n.daemon.Name, filepath.Join(n.lab.Dir, n.daemon.Name+".net.d")
	d, err := n.lab.Sandflow(o)
	must(n.t, err)
	n.daemon = d
	must(n.t, d.Start(n.t.Context()))
}

// survivor is a pod that lives through a change of daemons.
type survivor struct {
	name, handler string
	change        func(*cri.PodSandboxConfig, *cri.ContainerConfig)

	cfg              *cri.PodSandboxConfig
	pod, runs, ended string
	// away ends while no daemon is there, never is created and not started.
	away, never string
}

func survivors() []*survivor {
	return []*survivor{
		{name: "plain", change: func(p *cri.PodSandboxConfig, _ *cri.ContainerConfig) {
			p.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: 18081}}
		}},
		{name: "stock", handler: "stock", change: func(*cri.PodSandboxConfig, *cri.ContainerConfig) {}},
		{name: "shared", change: func(p *cri.PodSandboxConfig, c *cri.ContainerConfig) {
			p.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
			c.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
		}},
		{name: "userns", change: func(p *cri.PodSandboxConfig, c *cri.ContainerConfig) {
			userNamespace(p.Linux.SecurityContext.NamespaceOptions)
			userNamespace(c.Linux.SecurityContext.NamespaceOptions)
		}},
	}
}

func (n *node) makeSurvivor(s *survivor) {
	n.t.Helper()
	s.cfg = n.pod(s.name)
	ctr := func(name string, script string) *cri.ContainerConfig {
		c := n.ctr(name, "sh", "-c", script)
		s.change(s.cfg, c)
		return c
	}
	runs := ctr("runs", "trap 'echo stopping; exit 3' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
	var err error
	s.pod, err = n.tryRun(n.t.Context(), s.cfg, s.handler)
	must(n.t, err)
	s.runs = n.started(s.pod, s.cfg, runs)
	s.ended = n.started(s.pod, s.cfg, ctr("ended", "echo out; exit 7"))
	n.exited(s.ended)
	s.away = n.started(s.pod, s.cfg, ctr("away", "until [ -e /go-"+s.name+" ]; do sleep 0.02; done; echo last words; exit 9"))
	s.never = n.created(s.pod, s.cfg, ctr("never", "echo at last; exit 4"))
}

// taken checks that all that there was of a pod is there and works.
func (n *node) taken(s *survivor) {
	n.t.Helper()
	if st := n.podStatus(s.pod); st.GetState() != cri.PodSandboxState_SANDBOX_READY {
		n.t.Errorf("pod %s is %s", s.name, st.GetState())
	}
	if st := n.status(s.runs); st.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		n.t.Errorf("pod %s: the running container is %s: %s", s.name, st.GetState(), st.GetMessage())
	}
	for id, code := range map[string]int32{s.ended: 7, s.away: 9} {
		if st := n.exited(id); st.GetExitCode() != code {
			n.t.Errorf("pod %s: exit code %d, want %d", s.name, st.GetExitCode(), code)
		}
	}
	if got := n.exec(s.runs, "echo", "still here"); got != "still here\n" {
		n.t.Errorf("pod %s: exec printed %q", s.name, got)
	}
	must(n.t, n.tryStart(n.t.Context(), s.never))
	if st := n.exited(s.never); st.GetExitCode() != 4 {
		n.t.Errorf("pod %s: a container made by the other daemon ended with %d (%s)", s.name, st.GetExitCode(), st.GetMessage())
	}
	more := n.ctr("more", "sh", "-c", "echo new; exit 6")
	s.change(s.cfg, more)
	if st := n.exited(n.started(s.pod, s.cfg, more)); st.GetExitCode() != 6 {
		n.t.Errorf("pod %s: a new container ended with %d (%s)", s.name, st.GetExitCode(), st.GetMessage())
	}
	for ctr, want := range map[string]string{"ended": "out\n", "away": "last words\n", "never": "at last\n", "more": "new\n"} {
		if ctr == "away" && s.handler != "" {
			continue // such a shim throws away what nobody reads in the moment of the end
		}
		if got := rebuild(n.log(s.cfg, ctr), "stdout"); got != want {
			n.t.Errorf("pod %s: the log of %s is %q", s.name, ctr, got)
		}
	}
}

// stopped stops the container that has run all along: it ends as it wants, and its log has
// each line once.
func (n *node) stopped(s *survivor) {
	n.t.Helper()
	path := filepath.Join(s.cfg.GetLogDirectory(), "runs.log")
	must(n.t, os.Rename(path, path+".1"))
	_, err := n.client.ReopenContainerLog(n.t.Context(), &cri.ReopenContainerLogRequest{ContainerId: s.runs})
	must(n.t, err)
	_, err = n.client.StopContainer(n.t.Context(), &cri.StopContainerRequest{ContainerId: s.runs, Timeout: 20})
	must(n.t, err)
	if st := n.exited(s.runs); st.GetExitCode() != 3 {
		n.t.Errorf("pod %s: the stopped container ended with %d", s.name, st.GetExitCode())
	}
	old, err := os.ReadFile(path + ".1")
	must(n.t, err)
	lines := strings.Fields(rebuild(append(parse(n.t, old), n.log(s.cfg, "runs")...), "stdout"))
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprint(i+1) {
			n.t.Fatalf("pod %s: line %d of the log is %q", s.name, i+1, line)
		}
	}
	if last := lines[len(lines)-1]; last != "stopping" {
		n.t.Errorf("pod %s: the last line is %q", s.name, last)
	}
}

// TestUpgrade has the present daemon take over what an older one made, whose shims run on;
// and the older one, since the format of the journal is the same, what the present one made.
func TestUpgrade(t *testing.T) {
	old, now := older(t), harness.Options{}
	now.Extra = old.Extra
	for name, k := range map[string]struct{ from, to harness.Options }{"to a newer one": {old, now}, "back": {now, old}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, options{Options: k.from})
			all := survivors()
			if name == "back" { // that one takes such a container's end for an unknown one
				all = slices.DeleteFunc(all, func(s *survivor) bool { return s.handler != "" })
			}
			for _, s := range all {
				n.makeSurvivor(s)
			}
			must(t, n.daemon.Stop())
			for _, s := range all {
				n.touchIn("until [ -e /go-"+s.name+" ]", "/go-"+s.name)
			}
			waitFor(t, "the exits", func() bool { return len(n.pidsWith("until [ -e /go-")) == 0 })
			n.become(k.to)
			for _, s := range all {
				n.taken(s)
				n.stopped(s)
			}
			fresh := n.pod("fresh")
			n.remove(n.run(fresh))
			must(t, n.daemon.Kill()) // and once more, in the middle of everything
			must(t, n.daemon.Start(t.Context()))
			for _, s := range all {
				n.remove(s.pod)
			}
			n.same()
		})
	}
}

// TestEndsOfOtherShims ends containers of containerd's own shim while the daemon, and with it
// containerd, is away: each end is known afterwards, with its code and time.
func TestEndsOfOtherShims(t *testing.T) {
	l := lab(t)
	n := newNode(t, options{Options: harness.Options{Extra: "[runtime.handlers.stock]\ntype = \"" + l.Bin("containerd-shim-runc-v2") + "\"\noptions = {BinaryName = \"" + l.Bin("runc") + "\", Root = \"/run/ends-stock\"}\n"}})
	cfg := n.pod("stock")
	pod, err := n.tryRun(t.Context(), cfg, "stock")
	must(t, err)
	nine := n.started(pod, cfg, n.ctr("nine", "sh", "-c", "until [ -e /go ]; do sleep 0.02; done; exit 9"))
	killed := n.started(pod, cfg, n.ctr("killed", "sleep", "4713"))
	runs := n.started(pod, cfg, n.ctr("runs", "sleep", "1000"))
	must(t, n.daemon.Kill())
	n.touchIn("until [ -e /go ]", "/go")
	for _, pid := range n.pidsWith("sleep\x004713") {
		must(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	waitFor(t, "the exits", func() bool { return len(n.pidsWith("sleep\x004713"))+len(n.pidsWith("until [ -e /go ]")) == 0 })
	ended := time.Now()
	time.Sleep(1100 * time.Millisecond) // tells the exit's time from the restart's
	must(t, n.daemon.Start(t.Context()))
	n.wantExit(nine, 9, ended)
	n.wantExit(killed, 137, ended)
	if got := n.exec(runs, "echo", "still here"); got != "still here\n" {
		t.Errorf("exec after the restart printed %q", got)
	}
	n.remove(pod)
	n.same()
}

// TestDowngrade has a daemon come upon a journal, and shims, of a newer sandflow: it refuses to
// start, names both versions, and changes nothing; the pods run on, and the newer one goes on.
func TestDowngrade(t *testing.T) {
	n := newNode(t, options{})
	cfg := n.pod("of-tomorrow")
	pod := n.run(cfg)
	ctr := n.started(pod, cfg, n.ctr("c", "sleep", "4812"))
	must(t, n.daemon.Stop())
	journal := filepath.Join(n.daemon.Root, "journal.db")
	running := n.pidsWith("sleep\x004812")
	newer := fmt.Sprintf(`"Protocol":%d`, shimapi.Protocol+1)
	for what, k := range map[string]struct {
		change, back func(*bbolt.Tx) error
		says         []string
	}{
		"journal": {
			func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("2")) },
			func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("1")) },
			[]string{"it has format 2", "knows 1 to 1", "newer sandflow", journal},
		},
		"shim": {
			func(tx *bbolt.Tx) error {
				return replaced(tx, pod, fmt.Sprintf(`"Protocol":%d`, shimapi.Protocol), newer)
			},
			func(tx *bbolt.Tx) error {
				return replaced(tx, pod, newer, fmt.Sprintf(`"Protocol":%d`, shimapi.Protocol))
			},
			[]string{pod, fmt.Sprintf("speaks version %d", shimapi.Protocol+1), fmt.Sprintf("knows %d to %d", shimapi.Oldest, shimapi.Protocol)},
		},
	} {
		edit(t, journal, k.change)
		before, things := records(t, journal), n.countDown()
		err := n.daemon.Start(t.Context())
		if err == nil {
			t.Fatalf("a newer %s is taken over", what)
		}
		has(t, what, err.Error(), k.says...)
		if now := records(t, journal); now != before {
			t.Errorf("%s: the journal was\n%s\nand is\n%s", what, before, now)
		}
		// The containerd inside collects its own garbage when it has been started.
		now := n.countDown()
		for _, w := range []world.World{things, now} {
			delete(w, "snapshot directories")
		}
		if diff := world.Diff(things, now); diff != "" {
			t.Errorf("%s: changed on the node:\n%s", what, diff)
		}
		if got := n.pidsWith("sleep\x004812"); fmt.Sprint(got) != fmt.Sprint(running) {
			t.Errorf("%s: processes %v, were %v", what, got, running)
		}
		edit(t, journal, k.back)
	}
	must(t, n.daemon.Start(t.Context()))
	if got := n.exec(ctr, "echo", "still here"); got != "still here\n" {
		t.Errorf("exec printed %q", got)
	}
	n.remove(pod)
	n.same()
}

// countDown counts what is there without a daemon to ask.
func (n *node) countDown() world.World {
	n.t.Helper()
	where := n.daemon.World()
	where.Containerd = ""
	w, err := world.Count(n.t.Context(), where)
	must(n.t, err)
	return w
}

// records are all that the journal holds, as text.
func records(t *testing.T, journal string) string {
	t.Helper()
	var all strings.Builder
	edit(t, journal, func(tx *bbolt.Tx) error {
		return tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				_, err := fmt.Fprintf(&all, "%s %s %s\n", bucket, k, v)
				return err
			})
		})
	})
	return all.String()
}

func edit(t *testing.T, journal string, change func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(journal, 0o600, nil)
	must(t, err)
	must(t, db.Update(change))
	must(t, db.Close())
}

// replaced changes a part of the record of a pod.
func replaced(tx *bbolt.Tx, pod, from, to string) error {
	records, key := tx.Bucket([]byte("records")), []byte("sandbox/"+pod)
	was := records.Get(key)
	if bytes.Count(was, []byte(from)) != 1 {
		return fmt.Errorf("%s is not once in the record: %s", from, was)
	}
	return records.Put(key, bytes.Replace(was, []byte(from), []byte(to), 1))
}
