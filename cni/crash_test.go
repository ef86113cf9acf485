// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

const (
	daemonEnv = "SANDFLOW_TEST_CNI_DAEMON"
	// savedEnv has the daemon detach by this, and not attach.
	savedEnv = "SANDFLOW_TEST_CNI_SAVED"
)

// TestDaemon is no test: it is the daemon that TestKilledInAdd and TestKilledInDel kill.
func TestDaemon(t *testing.T) {
	text := os.Getenv(daemonEnv)
	if text == "" {
		t.Skip("only run by TestKilledInAdd and TestKilledInDel")
	}
	var c cni.Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	n, err := cni.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if saved := os.Getenv(savedEnv); saved != "" {
		err = n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: []byte(saved)})
	} else {
		_, err = n.Attach(t.Context(), cni.Attachment{ID: "p1"})
	}
	t.Fatalf("still alive: %v", err)
}

// kill starts a daemon, waits until its plugin has written its pid, and kills the daemon.
func kill(t *testing.T, c cni.Config, f *cnitest.Fake, env ...string) (plugin int) {
	t.Helper()
	conf, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("/proc/self/exe", "-test.run=^TestDaemon$")
	daemon.Env = append(append(os.Environ(), daemonEnv+"="+string(conf)), env...)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	plugin = readPID(t, filepath.Join(f.Dir(), "pid"))
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait() // it was killed
	return plugin
}

// TestKilledInAdd is CASES 6: the daemon dies by SIGKILL in the middle of ADD.
// The plugin must not go on, or it would undo the DEL of the next start.
func TestKilledInAdd(t *testing.T) {
	cnitest.NeedRoot(t)
	l, f, n := one(t)
	saved, err := n.Prepare(t.Context(), cni.Attachment{ID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	f.On(t, "ADD", `echo $$ > "$D/pid.tmp"; mv "$D/pid.tmp" "$D/pid"; exec sleep 300`)
	plugin := kill(t, l.cfg, f)
	waitGone(t, plugin)
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: saved}); err != nil {
		t.Fatal(err)
	}
	if got := f.Verbs(t); got != "ADD DEL" {
		t.Errorf("calls %q", got)
	}
}

// TestKilledInDel is CASES 83: the daemon dies by SIGKILL in the middle of DEL. The
// plugin must go on to its end, for it may be the only one that knows what to remove.
func TestKilledInDel(t *testing.T) {
	cnitest.NeedRoot(t)
	l, f, n := one(t)
	res, err := n.Attach(t.Context(), cni.Attachment{ID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	f.On(t, "DEL", `echo $$ > "$D/pid.tmp"; mv "$D/pid.tmp" "$D/pid"; sleep 0.5; touch "$D/finished"`)
	plugin := kill(t, l.cfg, f, savedEnv+"="+string(res.Saved))
	f.On(t, "DEL", "")
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: res.Saved}); err != nil {
		t.Errorf("the DEL of the next start: %v", err)
	}
	waitGone(t, plugin)
	if _, err := os.Stat(filepath.Join(f.Dir(), "finished")); err != nil {
		t.Errorf("the plugin was killed with the daemon: %v", err)
	}
}

// TestPluginKilledInAdd: what a plugin has delegated to does not outlive it.
func TestPluginKilledInAdd(t *testing.T) {
	cnitest.NeedRoot(t)
	_, f, n := one(t)
	f.On(t, "ADD", `sleep 300 </dev/null >/dev/null 2>&1 & echo $! > "$D/pid"; kill -9 $$`)
	if _, err := n.Attach(t.Context(), cni.Attachment{ID: "p1"}); err == nil {
		t.Error("attached")
	}
	waitGone(t, readPID(t, filepath.Join(f.Dir(), "pid")))
}

func TestAdding(t *testing.T) {
	cnitest.NeedRoot(t)
	for _, c := range []struct {
		env    []string
		mounts uintptr // of its own, as a container has
		want   bool
	}{
		{[]string{"CNI_COMMAND=ADD", "CNI_NETNS=/run/x/pods/p/ns/net"}, 0, true},
		{[]string{"CNI_COMMAND=ADD", "CNI_NETNS=/run/x/pods/p/ns/net"}, syscall.CLONE_NEWNS, false},
		{[]string{"CNI_COMMAND=DEL", "CNI_NETNS=/run/x/pods/p/ns/net"}, 0, false},
		{[]string{"CNI_COMMAND=ADD", "CNI_NETNS=/run/x/pods-of-others/p"}, 0, false},
		{[]string{"CNI_COMMAND=ADD", "CNI_NETNS=/run/x"}, 0, false},
		{[]string{"CNI_COMMAND=ADD"}, 0, false},
		{nil, 0, false},
	} {
		cmd := exec.Command("sleep", "300")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.mounts}
		cmd.Env = append([]string{"A=b"}, c.env...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if got := cni.Adding(cmd.Process.Pid, "/run/x/pods"); got != c.want {
			t.Errorf("%q: %v", c.env, got)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
	}
}
