// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// failingNetwork is a network whose last plugin fails when it is told to.
const failingNetwork = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]]}},
  {"type": "failcni", "control": "/root/failcni"}]}`

// column is a word of a table's head.
var column = regexp.MustCompile(`^[A-Z]{4,}$`)

// TestDebugging brings about what the debugging guide is about: a pod that runs, one that
// cannot be made, one that cannot be taken down. Then it runs the guide's commands, and looks
// for what the guide shows of their output.
func TestDebugging(t *testing.T) {
	n := newNode(t)
	n.put(filepath.Join(n.lab.Build, "cni")+"/.", "/opt/cni/bin")
	n.install(n.build("1.0.0"))
	n.write("/etc/cni/net.d/10-node.conflist", failingNetwork)
	n.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/sandflow/sandflow.sock\ntimeout: 60\n")
	n.run("systemctl", "start", "sandflowd")
	image := n.importImage()
	n.runPod("web", image, `"hostname": "web",`)
	stuck := n.runPod("stuck", image, "")
	n.write("/root/broken.json", `{"metadata": {"name": "broken", "namespace": "default", "uid": "broken-1"}, "linux": {}}`)
	for fail, c := range map[string][]string{"ADD": {"runp", "/root/broken.json"}, "DEL": {"stopp", stuck.id}} {
		n.write("/root/failcni", "fail "+fail+"\n")
		if _, err := n.Run(t.Context(), "crictl", c...); err == nil {
			t.Fatalf("crictl %s should fail", c)
		}
	}
	n.write("/root/failcni", "fail DEL\n")
	n.write("/root/wrong.toml", "[cri]\nsoket = \"/run/x.sock\"\n")

	guide, err := os.ReadFile("../../docs/debugging.md")
	must(t, err)
	for _, block := range commands(t, "debugging.md", "run") {
		out := n.run("bash", "-uc", "cd /root; { "+block+"} 2>&1")
		t.Logf("%s%s", block, out)
		// The words of a table's head are in the guide as they are here.
		head, _, _ := strings.Cut(out, "\n")
		for _, word := range strings.Fields(head) {
			if column.MatchString(word) && !strings.Contains(string(guide), word) {
				t.Errorf("%q prints a column %s that the guide does not show", block, word)
			}
		}
	}
	if out := n.run("journalctl", "-u", "sandflowd", "-p", "err", "-o", "cat"); !strings.Contains(out, "Action could not be undone") || strings.Contains(out, "Serving") {
		t.Errorf("errors in the journal are %s", out)
	}
	must(t, os.Remove(n.Path("/root/failcni")))
	wait(t, "the stuck pod to be taken down by itself", func() bool {
		return !strings.Contains(n.run("sandflow", "flows"), "default/stuck")
	})
	n.run("crictl", "rmp", "-a", "-f")
}
