// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sandflow-cri/sandflow/cni"
	"github.com/sandflow-cri/sandflow/cni/cnitest"
)

const daemonEnv = "SANDFLOW_TEST_CNI_DAEMON"

// TestDaemon is no test: it is the daemon that TestKilledInAdd kills.
func TestDaemon(t *testing.T) {
	text := os.Getenv(daemonEnv)
	if text == "" {
		t.Skip("only run by TestKilledInAdd")
	}
	var c cni.Config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	n, err := cni.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.Attach(t.Context(), cni.Attachment{ID: "p1"})
	t.Fatalf("still alive: %v", err)
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
	conf, err := json.Marshal(l.cfg)
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("/proc/self/exe", "-test.run=^TestDaemon$")
	daemon.Env = append(os.Environ(), daemonEnv+"="+string(conf))
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	plugin := readPID(t, filepath.Join(f.Dir(), "pid"))
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait() // it was killed
	waitGone(t, plugin)
	if err := n.Detach(t.Context(), cni.Attachment{ID: "p1", Saved: saved}); err != nil {
		t.Fatal(err)
	}
	if got := f.Verbs(t); got != "ADD DEL" {
		t.Errorf("calls %q", got)
	}
}
